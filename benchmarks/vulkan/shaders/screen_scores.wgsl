// The least and the largest score that a token may have in a draw, logit / temperature + noise: a
// workgroup for 1,024 tokens of a row. The noise has doubles in the reference, so that float32 can
// only bound it. `floors` has the largest of the least scores.
@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read> keys: array<vec2u>;
@group(0) @binding(2) var<storage, read> inverses: array<f32>;
@group(0) @binding(3) var<storage, read_write> scores: array<vec2f>;
@group(0) @binding(4) var<storage, read_write> floors: array<f32>;

var<workgroup> found: array<f32, 64>;

// -log(-log(u)) for u = (h + 1/2) / 2^52, where h are the upper 52 of 64 bits.
fn gumbel(bits: vec2u) -> f32 {
    var exponential: f32;
    if (bits.y < 0xe0000000u) {
        let high = f32(bits.y >> 12u) * 4294967296.0;
        let u = (high + f32((bits.x >> 12u) | (bits.y << 20u)) + 0.5) / 4503599627370496.0;
        exponential = -log(u);
    } else {
        // 1 - u is exact but for one rounding, and small: a few terms of the series are enough.
        let high = ~bits.y;
        let low = (~bits.x >> 12u) | (high << 20u);
        let v = (f32(high >> 12u) * 4294967296.0 + f32(low) + 0.5) / 4503599627370496.0;
        var sum = 0.0;
        for (var term = 10.0; term > 0.0; term -= 1.0) {
            sum = sum * v + 1.0 / term;
        }
        exponential = v * sum;
    }
    return -log(exponential);
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) me: u32) {
    let row = group.y;
    var best = LEAST;
    let stop = min(VOCABULARY, (group.x + 1u) * 1024u);
    for (var token = group.x * 1024u + me; token < stop; token += 64u) {
        let scaled = logits[row * VOCABULARY + token] * inverses[row];
        let bits = random_bits(token, keys[2u * row], keys[2u * row + 1u]);
        let score = scaled + gumbel(bits);
        let error = ERROR + RELATIVE_ERROR * abs(scaled);
        scores[row * VOCABULARY + token] = vec2f(score - error, score + error);
        best = max(best, score - error);
    }
    found[me] = best;
    for (var half = 32u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (me < half) {
            found[me] = max(found[me], found[me + half]);
        }
    }
    if (me == 0u) {
        floors[row * PARTS + group.x] = found[0];
    }
}
