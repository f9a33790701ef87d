// Lines of codes that stand for floats: registers look their bytes up (kernels/codings.inl).
#pragma once

#include "kernels/vector_lines.inl"
