// The 64 random bits of a token with the two keys of a draw, as octavo/backends/torch/sampling/noise.py
// has them, by numbers of 32 bits alone: x is the low half.
const GOLDEN = vec2u(0x7f4a7c15u, 0x9e3779b9u);
const FIRST = vec2u(0x1ce4e5b9u, 0xbf58476du);
const SECOND = vec2u(0x133111ebu, 0x94d049bbu);

fn high_product(a: u32, b: u32) -> u32 {
    let low = (a & 0xffffu) * (b & 0xffffu);
    let one = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
    let other = (a & 0xffffu) * (b >> 16u) + (one & 0xffffu);
    return (a >> 16u) * (b >> 16u) + (one >> 16u) + (other >> 16u);
}

fn times(a: vec2u, b: vec2u) -> vec2u {
    return vec2u(a.x * b.x, high_product(a.x, b.x) + a.x * b.y + a.y * b.x);
}

fn plus(a: vec2u, b: vec2u) -> vec2u {
    let low = a.x + b.x;
    return vec2u(low, a.y + b.y + u32(low < a.x));
}

fn shifted(a: vec2u, count: u32) -> vec2u {
    return vec2u((a.x >> count) | (a.y << (32u - count)), a.y >> count);
}

fn random_bits(token: u32, one: vec2u, two: vec2u) -> vec2u {
    var x = plus(times(vec2u(token, 0u), GOLDEN), one);
    x ^= shifted(x, 30u);
    x = plus(times(x, FIRST), two);
    x ^= shifted(x, 27u);
    x = times(x, SECOND);
    return x ^ shifted(x, 31u);
}
