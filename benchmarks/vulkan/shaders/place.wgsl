// Rotations of queries and keys; keys and values to their cells: a workgroup for each row. The
// cosines and sines of all positions are a table, since WGSL bounds the error of its own functions
// only between -pi and pi.
@group(0) @binding(0) var<storage, read> batch: array<u32>;
@group(0) @binding(1) var<storage, read> turns: array<vec2f>;
@group(0) @binding(2) var<storage, read> q: array<f32>;
@group(0) @binding(3) var<storage, read> k: array<f32>;
@group(0) @binding(4) var<storage, read> v: array<f32>;
@group(0) @binding(5) var<storage, read_write> queries: array<f32>;
@group(0) @binding(6) var<storage, read_write> cells: array<f32>;

// The place of a dimension's partner, and the sign of the partner's part.
fn partner(dim: u32) -> vec2i {
    if (INTERLEAVED) {
        return vec2i(i32(dim ^ 1u), select(1, -1, dim % 2u == 0u));
    }
    let is_first = dim < PAIRS;
    return vec2i(i32(select(dim - PAIRS, dim + PAIRS, is_first)), select(1, -1, is_first));
}

fn turn(position: u32, dim: u32) -> vec2f {
    return turns[position * PAIRS + select(dim % PAIRS, dim / 2u, INTERLEAVED)];
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) me: u32) {
    let row = group.x;
    let position = batch[POSITIONS_AT + row];
    let block = batch[TABLES_AT + batch[OWNERS_AT + row] * BLOCKS + position / BLOCK_SIZE];
    let cell = (block * 2u * BLOCK_SIZE + position % BLOCK_SIZE) * KV_HEADS * HEAD_DIM;
    for (var i = me; i < HEADS * HEAD_DIM; i += 64u) {
        let from_ = row * Q_STRIDE + Q_FIRST + i;
        let dim = i % HEAD_DIM;
        var found = q[from_];
        if (dim < 2u * PAIRS) {
            let other = partner(dim);
            let by = turn(position, dim);
            found = found * by.x + f32(other.y) * q[from_ - dim + u32(other.x)] * by.y;
        }
        queries[row * HEADS * HEAD_DIM + i] = found;
    }
    for (var i = me; i < KV_HEADS * HEAD_DIM; i += 64u) {
        let from_ = row * K_STRIDE + K_FIRST + i;
        let dim = i % HEAD_DIM;
        var found = k[from_];
        if (dim < 2u * PAIRS) {
            let other = partner(dim);
            let by = turn(position, dim);
            found = found * by.x + f32(other.y) * k[from_ - dim + u32(other.x)] * by.y;
        }
        cells[cell + i] = found;
        cells[cell + BLOCK_SIZE * KV_HEADS * HEAD_DIM + i] = v[row * V_STRIDE + V_FIRST + i];
    }
}
