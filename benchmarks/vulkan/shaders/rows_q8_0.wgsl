// Rows of GGUF's Q8_0: of 32 numbers a scale in float16 and 32 codes of eight bits with a sign. A
// group has 34 bytes, so that every other one begins in the middle of a word.
fn weights(row: u32, unit: u32) -> array<vec4f, 2> {
    let group = (unit / 4u) * 34u;
    let first = row * ROW_WORDS;
    let scale = unpack2x16float(stored[first + group / 4u] >> ((group % 4u) * 8u)).x;
    var found: array<vec4f, 2>;
    for (var half = 0u; half < 2u; half++) {
        let byte = group + 2u + (unit % 4u) * 8u + half * 4u;
        let word = first + byte / 4u;
        var codes = stored[word];
        if (byte % 4u != 0u) {
            codes = (codes >> 16u) | (stored[word + 1u] << 16u);
        }
        found[half] = vec4f(unpack4xI8(codes)) * scale;
    }
    return found;
}
