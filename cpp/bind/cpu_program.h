#pragma once

#include <nanobind/nanobind.h>

void bind_cpu_program(nanobind::module_& m);
