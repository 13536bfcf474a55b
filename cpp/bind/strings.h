#pragma once

#include <nanobind/nanobind.h>

void bind_strings(nanobind::module_& m);
