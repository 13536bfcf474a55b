#pragma once

#include <nanobind/nanobind.h>

void bind_sampler(nanobind::module_& m);
