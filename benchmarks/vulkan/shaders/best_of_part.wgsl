// The most likely of some tokens, the first of equals, and whether all their logits are finite: a
// workgroup for 1,024 tokens of a row. A compiler may assume that no float is NaN, so bits decide.
@group(0) @binding(0) var<storage, read> logits: array<u32>;
@group(0) @binding(1) var<storage, read_write> bests: array<vec2u>;

const INFINITE = 0x7f800000u;

var<workgroup> found: array<vec2u, 64>;

// A number whose order is that of the float with these bits; larger than all of them if not finite.
fn rank(bits: u32) -> u32 {
    if ((bits & INFINITE) == INFINITE) {
        return 0xffffffffu;
    }
    if (bits == 0x80000000u) {
        return 0x80000000u;
    }
    return select(bits | 0x80000000u, ~bits, bits >> 31u == 1u);
}

fn better(one: vec2u, other: vec2u) -> vec2u {
    let is_other = other.x > one.x || (other.x == one.x && other.y < one.y);
    return select(one, other, is_other);
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) me: u32) {
    var best = vec2u(0u, NO_TOKEN);
    let stop = min(VOCABULARY, (group.x + 1u) * 1024u);
    for (var token = group.x * 1024u + me; token < stop; token += 64u) {
        best = better(best, vec2u(rank(logits[group.y * VOCABULARY + token]), token));
    }
    found[me] = best;
    for (var half = 32u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (me < half) {
            found[me] = better(found[me], found[me + half]);
        }
    }
    if (me == 0u) {
        bests[group.y * PARTS + group.x] = found[0];
    }
}
