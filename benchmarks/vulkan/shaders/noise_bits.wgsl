// The random bits of draws and tokens, to be compared: an invocation for each token.
@group(0) @binding(0) var<storage, read> keys: array<vec2u>;
@group(0) @binding(1) var<storage, read_write> result: array<vec2u>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3u) {
    if (id.x >= TOKENS) {
        return;
    }
    result[id.y * TOKENS + id.x] = random_bits(id.x, keys[2u * id.y], keys[2u * id.y + 1u]);
}
