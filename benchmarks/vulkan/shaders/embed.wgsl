// Rows of a table by the tokens' numbers: a workgroup for each row. A token of LAST is the one that
// was drawn for its sequence before. A table in several parts has a dispatch for each.
@group(0) @binding(0) var<storage, read> batch: array<u32>;
@group(0) @binding(1) var<storage, read> stored: array<u32>;
@group(0) @binding(2) var<storage, read> drawn: array<u32>;
@group(0) @binding(3) var<storage, read_write> result: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) me: u32) {
    let row = group.x;
    var token = batch[TOKENS_AT + row];
    if (token == LAST) {
        token = drawn[batch[OWNERS_AT + row]];
    }
    if (token < FIRST_OUTPUT || token >= FIRST_OUTPUT + OUTPUTS) {
        return;
    }
    for (var unit = me; unit < UNITS; unit += 64u) {
        let found = weights(token - FIRST_OUTPUT, unit);
        for (var i = 0u; i < 8u; i++) {
            let column = unit * 8u + i;
            if (column < INPUTS) {
                result[row * INPUTS + column] = found[i / 4u][i % 4u] * FACTOR;
            }
        }
    }
}
