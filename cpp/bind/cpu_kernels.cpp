#include "bind/cpu_kernels.h"

#include <algorithm>
#include <stdexcept>

#include "hw/cpu_features.h"

namespace slipstream {

const KernelTable& kernels_by_name(const std::string& name) {
    if (name == "scalar") return scalar_kernels();
#if defined(__x86_64__)
    if (name == "avx2") {
        const std::vector<std::string> have = cpu_features();
        for (const char* need : {"avx2", "fma", "f16c"}) {
            if (std::find(have.begin(), have.end(), need) == have.end()) throw std::invalid_argument(std::string("this processor has no ") + need);
        }
        return avx2_kernels();
    }
#endif
    throw std::invalid_argument("no kernels for " + name);
}

std::vector<std::string> kernel_sets() {
    std::vector<std::string> names;
#if defined(__x86_64__)
    const std::vector<std::string> have = cpu_features();
    const auto has = [&](const char* name) { return std::find(have.begin(), have.end(), name) != have.end(); };
    if (has("avx2") && has("fma") && has("f16c")) names.emplace_back("avx2");
#endif
    names.emplace_back("scalar");
    return names;
}

}  // namespace slipstream
