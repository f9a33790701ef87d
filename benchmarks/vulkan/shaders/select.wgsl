// Chosen rows of a value: an invocation for each number.
@group(0) @binding(0) var<storage, read> batch: array<u32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> result: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3u) {
    if (id.x >= WIDTH) {
        return;
    }
    let row = batch[SELECTED_AT + id.y];
    result[id.y * WIDTH + id.x] = x[row * X_STRIDE + X_FIRST + id.x];
}
