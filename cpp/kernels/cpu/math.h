#pragma once

#include "simd/simd.h"

namespace slipstream::SLIPSTREAM_ISA {

constexpr float kLog2E = 1.44269504f;

// e^x, relative error below 3e-7 (a degree-6 polynomial on [-ln 2 / 2, ln 2 / 2]); x below -87 gives e^-87; NaN gives NaN, since
// max and min give their second operand if one is NaN.
SLIPSTREAM_INLINE F32x8 exp(F32x8 x) {
    x = min(set(88.0f), max(set(-87.0f), x));
    const F32x8 n = round_even(mul(x, set(kLog2E)));
    // ln 2 in two parts, so that n ln 2 loses nothing.
    F32x8 r = fma(n, set(-0.693359375f), x);
    r = fma(n, set(2.12194440e-4f), r);
    F32x8 p = set(1.3888889e-3f);
    p = fma(p, r, set(8.3333333e-3f));
    p = fma(p, r, set(4.1666667e-2f));
    p = fma(p, r, set(1.6666667e-1f));
    p = fma(p, r, set(0.5f));
    p = fma(p, r, set(1.0f));
    p = fma(p, r, set(1.0f));
    return times_pow2(p, n);
}

// 2^x for x <= 0, relative error below 2e-7 (a degree-6 polynomial on [-1/2, 1/2]); x below -126 gives 2^-126; NaN gives NaN.
SLIPSTREAM_INLINE F32x8 exp2_below(F32x8 x) {
    x = max(set(-126.0f), x);
    const F32x8 n = round_even(x), r = sub(x, n);
    F32x8 p = set(1.5403530e-4f);
    p = fma(p, r, set(1.3333558e-3f));
    p = fma(p, r, set(9.6181291e-3f));
    p = fma(p, r, set(5.5504109e-2f));
    p = fma(p, r, set(2.4022651e-1f));
    p = fma(p, r, set(6.9314718e-1f));
    p = fma(p, r, set(1.0f));
    return times_pow2(p, n);
}

// tanh: an odd polynomial near zero (Cephes' interval 0.625), 1 - 2 / (e^2|x| + 1) beyond.
SLIPSTREAM_INLINE F32x8 tanh(F32x8 x) {
    const F32x8 a = abs(x), z = mul(x, x);
    F32x8 p = set(-5.70498872745e-3f);
    p = fma(p, z, set(2.06390887954e-2f));
    p = fma(p, z, set(-5.37397155531e-2f));
    p = fma(p, z, set(1.33314422036e-1f));
    p = fma(p, z, set(-3.33332819422e-1f));
    const F32x8 near = fma(mul(p, z), x, x);
    const F32x8 far = sub(set(1.0f), div(set(2.0f), add(exp(add(a, a)), set(1.0f))));
    const F32x8 signed_far = select_less(x, zero(), sub(zero(), far), far);
    return select_less(a, set(0.625f), near, signed_far);
}

SLIPSTREAM_INLINE F32x8 silu(F32x8 x) { return div(x, add(exp(sub(zero(), x)), set(1.0f))); }

// 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))). Hendrycks, Gimpel, arXiv 1606.08415.
SLIPSTREAM_INLINE F32x8 gelu_tanh(F32x8 x) {
    const F32x8 inner = mul(fma(mul(mul(x, x), x), set(0.044715f), x), set(0.7978845608f));
    return mul(mul(x, set(0.5f)), add(tanh(inner), set(1.0f)));
}

}  // namespace slipstream::SLIPSTREAM_ISA
