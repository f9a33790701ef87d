// The best of all parts of a row's tokens: a workgroup for each row. A row with a logit that is not
// finite has NO_TOKEN.
@group(0) @binding(0) var<storage, read> bests: array<vec2u>;
@group(0) @binding(1) var<storage, read_write> drawn: array<u32>;

var<workgroup> found: array<vec2u, 64>;

fn better(one: vec2u, other: vec2u) -> vec2u {
    let is_other = other.x > one.x || (other.x == one.x && other.y < one.y);
    return select(one, other, is_other);
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) me: u32) {
    var best = vec2u(0u, NO_TOKEN);
    for (var part = me; part < PARTS; part += 64u) {
        best = better(best, bests[group.x * PARTS + part]);
    }
    found[me] = best;
    for (var half = 32u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (me < half) {
            found[me] = better(found[me], found[me + half]);
        }
    }
    if (me == 0u) {
        drawn[group.x] = select(found[0].y, NO_TOKEN, found[0].x == 0xffffffffu);
    }
}
