// SiLU of gates, times ups: an invocation for each number.
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> y: array<f32>;
@group(0) @binding(2) var<storage, read_write> result: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3u) {
    if (id.x >= WIDTH) {
        return;
    }
    let gate = x[id.y * X_STRIDE + X_FIRST + id.x];
    // exp may be anything where it is larger than the largest float; the result is 0 there.
    let part = select(gate / (1.0 + exp(min(-gate, 88.0))), 0.0, gate < -88.0);
    result[id.y * WIDTH + id.x] = part * y[id.y * Y_STRIDE + Y_FIRST + id.x];
}
