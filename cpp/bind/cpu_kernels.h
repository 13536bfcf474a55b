#pragma once

#include <string>
#include <vector>

#include "kernels/cpu/ops.h"

namespace slipstream {

// The sets that this processor runs, best first.
std::vector<std::string> kernel_sets();

// Throws std::invalid_argument for a set that it does not run.
const KernelTable& kernels_by_name(const std::string& name);

}  // namespace slipstream
