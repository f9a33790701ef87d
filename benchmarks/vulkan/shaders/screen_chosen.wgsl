// The tokens of a row whose score may be the largest, each with its logit, in any order: a workgroup
// for each row. Before them stands their number, which may be larger than MOST.
@group(0) @binding(0) var<storage, read> logits: array<u32>;
@group(0) @binding(1) var<storage, read> scores: array<vec2f>;
@group(0) @binding(2) var<storage, read> floors: array<f32>;
@group(0) @binding(3) var<storage, read_write> chosen: array<atomic<u32>>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) me: u32) {
    let row = group.x;
    let first = row * (1u + 2u * MOST);
    if (me == 0u) {
        atomicStore(&chosen[first], 0u);
    }
    storageBarrier();
    var floor_ = LEAST;
    for (var part = 0u; part < PARTS; part++) {
        floor_ = max(floor_, floors[row * PARTS + part]);
    }
    for (var token = me; token < VOCABULARY; token += 64u) {
        if (scores[row * VOCABULARY + token].y >= floor_) {
            let place = atomicAdd(&chosen[first], 1u);
            if (place < MOST) {
                atomicStore(&chosen[first + 1u + 2u * place], token);
                atomicStore(&chosen[first + 2u + 2u * place], logits[row * VOCABULARY + token]);
            }
        }
    }
}
