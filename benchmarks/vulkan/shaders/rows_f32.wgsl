// Rows of float32, padded with zeros to whole units of eight numbers.
fn weights(row: u32, unit: u32) -> array<vec4f, 2> {
    let at = row * ROW_WORDS + unit * 8u;
    var found: array<vec4f, 2>;
    for (var i = 0u; i < 4u; i++) {
        found[0][i] = bitcast<f32>(stored[at + i]);
        found[1][i] = bitcast<f32>(stored[at + 4u + i]);
    }
    return found;
}
