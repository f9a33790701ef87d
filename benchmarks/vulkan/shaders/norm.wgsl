// RMS norms: a workgroup for each row, or for each head of a row.
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> weight: array<f32>;
@group(0) @binding(2) var<storage, read_write> result: array<f32>;

var<workgroup> sums: array<f32, 64>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) me: u32) {
    let first = group.y * X_STRIDE + X_FIRST + group.x * WIDTH;
    var sum = 0.0;
    for (var i = me; i < WIDTH; i += 64u) {
        sum += x[first + i] * x[first + i];
    }
    sums[me] = sum;
    for (var half = 32u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (me < half) {
            sums[me] += sums[me + half];
        }
    }
    workgroupBarrier();
    let scale = 1.0 / sqrt(sums[0] / f32(WIDTH) + EPS);
    let to = (group.y * HEADS + group.x) * WIDTH;
    for (var i = me; i < WIDTH; i += 64u) {
        result[to + i] = x[first + i] * scale * (OFFSET + weight[i]);
    }
}
