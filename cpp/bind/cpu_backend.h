#pragma once

#include <nanobind/nanobind.h>

void bind_cpu_backend(nanobind::module_& m);
