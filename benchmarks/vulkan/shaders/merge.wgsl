// The chunks of a row's attention, added up from the first to the last: a workgroup for a head and
// a row.
@group(0) @binding(0) var<storage, read> batch: array<u32>;
@group(0) @binding(1) var<storage, read> parts: array<f32>;
@group(0) @binding(2) var<storage, read_write> result: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) me: u32) {
    let head = group.x;
    var row = group.y;
    if (IS_SELECTED) {
        row = batch[SELECTED_AT + row];
    }
    let count = batch[POSITIONS_AT + row] / CHUNK + 1u;
    let step = HEADS * (HEAD_DIM + 2u);
    let first = group.y * CHUNKS * step + head * (HEAD_DIM + 2u);
    var largest = parts[first + HEAD_DIM + 1u];
    for (var n = 1u; n < count; n++) {
        largest = max(largest, parts[first + n * step + HEAD_DIM + 1u]);
    }
    for (var dim = me; dim < HEAD_DIM; dim += 64u) {
        var sum = 0.0;
        var weight = 0.0;
        for (var n = 0u; n < count; n++) {
            let part = first + n * step;
            let factor = exp(parts[part + HEAD_DIM + 1u] - largest);
            sum += factor * parts[part + dim];
            weight += factor * parts[part + HEAD_DIM];
        }
        result[(group.y * HEADS + head) * HEAD_DIM + dim] = sum / weight;
    }
}
