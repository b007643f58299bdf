"""The normal distribution in compiled code: masses of intervals in log space, and draws from them."""

from __future__ import annotations

from math import erfc, exp, inf, log, log1p, pi, sqrt

from qposterior.model.kernels.compile import kernel

FAR = 30.0
"""Beyond this many standard deviations the tail is taken from its asymptotic series."""


@kernel
def log_tail(z: float) -> float:
    """Return log Φ(z), accurate far into the lower tail."""
    if z > 0.0:
        return log1p(-0.5 * erfc(z / sqrt(2.0)))
    if z > -FAR:
        return log(0.5 * erfc(-z / sqrt(2.0)))
    square = z * z
    return -0.5 * square - 0.5 * log(2.0 * pi) - log(-z) + log1p(-1.0 / square + 3.0 / square**2)


@kernel
def log_mass(low: float, high: float) -> float:
    """Return log(Φ(high) − Φ(low)), −inf where the interval is empty."""
    if not high > low:
        return -inf
    if low > 0.0:  # the same mass on the side where tails keep their digits
        low, high = -high, -low
    upper = 0.0 if high == inf else log_tail(high)
    if low == -inf:
        return upper
    gap = exp(log_tail(low) - upper)
    return upper + log1p(-gap) if gap < 1.0 else -inf


@kernel
def quantile(p: float) -> float:
    """Return Φ⁻¹(p) for 0 < p < 1 (Wichura's algorithm AS 241, about 16 digits)."""
    q = p - 0.5
    if abs(q) <= 0.425:
        r = 0.180625 - q * q
        top = 2.5090809287301226727e3
        top = top * r + 3.3430575583588128105e4
        top = top * r + 6.7265770927008700853e4
        top = top * r + 4.5921953931549871457e4
        top = top * r + 1.3731693765509461125e4
        top = top * r + 1.9715909503065514427e3
        top = top * r + 1.3314166789178437745e2
        top = top * r + 3.3871328727963666080e0
        low = 5.2264952788528545610e3
        low = low * r + 2.8729085735721942674e4
        low = low * r + 3.9307895800092710610e4
        low = low * r + 2.1213794301586595867e4
        low = low * r + 5.3941960214247511077e3
        low = low * r + 6.8718700749205790830e2
        low = low * r + 4.2313330701600911252e1
        return q * top / (low * r + 1.0)
    r = sqrt(-log(p if q < 0.0 else 1.0 - p))
    if r <= 5.0:
        r -= 1.6
        top = 7.74545014278341407640e-4
        top = top * r + 2.27238449892691845833e-2
        top = top * r + 2.41780725177450611770e-1
        top = top * r + 1.27045825245236838258e0
        top = top * r + 3.64784832476320460504e0
        top = top * r + 5.76949722146069140550e0
        top = top * r + 4.63033784615654529590e0
        top = top * r + 1.42343711074968357734e0
        low = 1.05075007164441684324e-9
        low = low * r + 5.47593808499534494600e-4
        low = low * r + 1.51986665636164571966e-2
        low = low * r + 1.48103976427480074590e-1
        low = low * r + 6.89767334985100004550e-1
        low = low * r + 1.67638483018380384940e0
        low = low * r + 2.05319162663775882187e0
    else:
        r -= 5.0
        top = 2.01033439929228813265e-7
        top = top * r + 2.71155556874348757815e-5
        top = top * r + 1.24266094738807843860e-3
        top = top * r + 2.65321895265761230930e-2
        top = top * r + 2.96560571828504891230e-1
        top = top * r + 1.78482653991729133580e0
        top = top * r + 5.46378491116411436990e0
        top = top * r + 6.65790464350110377720e0
        low = 2.04426310338993978564e-15
        low = low * r + 1.42151175831644588870e-7
        low = low * r + 1.84631831751005468180e-5
        low = low * r + 7.86869131145613259100e-4
        low = low * r + 1.48753612908506148525e-2
        low = low * r + 1.36929880922735805310e-1
        low = low * r + 5.99832206555887937690e-1
    tail = top / (low * r + 1.0)
    return -tail if q < 0.0 else tail


@kernel
def truncated_quantile(low: float, high: float, u: float) -> float:
    """Return the u-quantile of N(0, 1) given low < x < high."""
    if low > 0.0:
        return -truncated_quantile_lower(-high, -low, 1.0 - u)
    return truncated_quantile_lower(low, high, u)


@kernel
def truncated_quantile_lower(low: float, high: float, u: float) -> float:
    """The same for low ≤ 0."""
    upper = 0.0 if high == inf else log_tail(high)
    if upper < -0.5 * FAR * FAR:
        # So far out that the tail is exponential: Φ(x)/Φ(high) ≈ exp(−|high| (high − x)).
        floor = 0.0 if low == -inf else exp(log_tail(low) - upper)
        return max(low, high + log(floor + u * (1.0 - floor)) / abs(high))
    floor = 0.0 if low == -inf else exp(log_tail(low))
    p = floor + u * (exp(upper) - floor)
    if p <= 0.0:
        return high
    x = quantile(p) if p < 1.0 else high
    return min(max(x, low), high)
