// What each bind/*.cpp adds to the extension module.
#pragma once

#include <nanobind/nanobind.h>

namespace octavo {

void bind_attention(nanobind::module_& m);
void bind_sampling(nanobind::module_& m);

}  // namespace octavo
