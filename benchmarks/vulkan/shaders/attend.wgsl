// Attention of rows over the paged cache: a workgroup for a chunk of positions, a KV head and a row.
// It leaves the chunk's weighted sum of values, the sum of its weights and its largest score.
@group(0) @binding(0) var<storage, read> batch: array<u32>;
@group(0) @binding(1) var<storage, read> queries: array<f32>;
@group(0) @binding(2) var<storage, read> cells: array<f32>;
@group(0) @binding(3) var<storage, read_write> parts: array<f32>;

const PER_KV = HEADS / KV_HEADS;

var<workgroup> asking: array<f32, PER_KV * HEAD_DIM>;
var<workgroup> places: array<u32, CHUNK>;
var<workgroup> shares: array<f32, PER_KV * CHUNK>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) me: u32) {
    let first = group.x * CHUNK;
    let head = group.y;
    var row = group.z;
    if (IS_SELECTED) {
        row = batch[SELECTED_AT + row];
    }
    let position = batch[POSITIONS_AT + row];
    if (first > position) {
        return;
    }
    let count = min(CHUNK, position + 1u - first);
    for (var i = me; i < PER_KV * HEAD_DIM; i += 64u) {
        asking[i] = queries[(row * HEADS + head * PER_KV) * HEAD_DIM + i];
    }
    for (var i = me; i < count; i += 64u) {
        let at = first + i;
        let block = batch[TABLES_AT + batch[OWNERS_AT + row] * BLOCKS + at / BLOCK_SIZE];
        places[i] = ((block * 2u * BLOCK_SIZE + at % BLOCK_SIZE) * KV_HEADS + head) * HEAD_DIM;
    }
    workgroupBarrier();
    for (var i = me; i < PER_KV * count; i += 64u) {
        let query = i / count;
        let place = places[i % count];
        var score = 0.0;
        for (var dim = 0u; dim < HEAD_DIM; dim++) {
            score += asking[query * HEAD_DIM + dim] * cells[place + dim];
        }
        shares[query * CHUNK + i % count] = score * SCALE;
    }
    workgroupBarrier();
    let to = ((group.z * CHUNKS + group.x) * HEADS + head * PER_KV) * (HEAD_DIM + 2u);
    for (var query = me; query < PER_KV; query += 64u) {
        var largest = shares[query * CHUNK];
        for (var i = 1u; i < count; i++) {
            largest = max(largest, shares[query * CHUNK + i]);
        }
        var weight = 0.0;
        for (var i = 0u; i < count; i++) {
            let share = exp(shares[query * CHUNK + i] - largest);
            shares[query * CHUNK + i] = share;
            weight += share;
        }
        parts[to + query * (HEAD_DIM + 2u) + HEAD_DIM] = weight;
        parts[to + query * (HEAD_DIM + 2u) + HEAD_DIM + 1u] = largest;
    }
    workgroupBarrier();
    let values = BLOCK_SIZE * KV_HEADS * HEAD_DIM;
    for (var i = me; i < PER_KV * HEAD_DIM; i += 64u) {
        let query = i / HEAD_DIM;
        let dim = i % HEAD_DIM;
        var sum = 0.0;
        for (var n = 0u; n < count; n++) {
            sum += shares[query * CHUNK + n] * cells[places[n] + values + dim];
        }
        parts[to + query * (HEAD_DIM + 2u) + dim] = sum;
    }
}
