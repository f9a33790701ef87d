// Products: a workgroup for four outputs of four rows, with sixteen invocations for each output.
// An invocation adds up every sixteenth unit of eight inputs; sixteen sums are then halved. So the
// order of a row's sums depends on nothing but the number of inputs.
@group(0) @binding(0) var<storage, read> batch: array<u32>;
@group(0) @binding(1) var<storage, read> stored: array<u32>;
@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read_write> result: array<f32>;

const LANES = 16u;
const OUTPUTS_A_GROUP = 4u;
const TILE = 4u;

var<workgroup> sums: array<f32, 256>;

fn inputs(row: u32, column: u32) -> vec4f {
    let at = row * X_STRIDE + X_FIRST + column;
    if (INPUTS % 8u == 0u || column + 4u <= INPUTS) {
        return vec4f(x[at], x[at + 1u], x[at + 2u], x[at + 3u]);
    }
    var found = vec4f();
    for (var i = 0u; column + i < INPUTS; i++) {
        found[i] = x[at + i];
    }
    return found;
}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) me: u32,
) {
    let output = (group.y * groups.x + group.x) * OUTPUTS_A_GROUP + me / LANES;
    let lane = me % LANES;
    let first_row = group.z * TILE;
    let rows = batch[ROWS_AT];
    var own: array<f32, TILE>;
    if (output < OUTPUTS) {
        for (var unit = lane; unit < UNITS; unit += LANES) {
            let found = weights(output, unit);
            for (var r = 0u; r < TILE; r++) {
                if (first_row + r < rows) {
                    own[r] += dot(found[0], inputs(first_row + r, unit * 8u));
                    own[r] += dot(found[1], inputs(first_row + r, unit * 8u + 4u));
                }
            }
        }
    }
    for (var r = 0u; r < TILE; r++) {
        sums[r * 64u + me] = own[r];
    }
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            for (var r = 0u; r < TILE; r++) {
                sums[r * 64u + me] += sums[r * 64u + me + half];
            }
        }
    }
    if (lane == 0u && output < OUTPUTS) {
        for (var r = 0u; r < TILE && first_row + r < rows; r++) {
            result[(first_row + r) * WIDTH + FIRST_OUTPUT + output] = sums[r * 64u + me];
        }
    }
}
