// What the extension is bound from: one function a part.
#pragma once

#include <nanobind/nanobind.h>

namespace octavo {

void bind_weights(nanobind::module_& m);
void bind_program(nanobind::module_& m);

}  // namespace octavo
