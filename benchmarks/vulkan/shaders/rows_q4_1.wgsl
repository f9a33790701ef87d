// Rows of GGUF's Q4_1: of 32 numbers a scale and a minimum in float16, then 16 bytes, whose low
// halves are the first 16 codes and whose high halves are the others. Five words, all aligned.
fn weights(row: u32, unit: u32) -> array<vec4f, 2> {
    let at = row * ROW_WORDS + (unit / 4u) * 5u;
    let scale_and_minimum = unpack2x16float(stored[at]);
    let word = at + 1u + (unit % 2u) * 2u;
    let shift = ((unit / 2u) % 2u) * 4u;
    var found: array<vec4f, 2>;
    for (var half = 0u; half < 2u; half++) {
        let codes = vec4f(unpack4xU8((stored[word + half] >> shift) & 0x0f0f0f0fu));
        found[half] = codes * scale_and_minimum.x + scale_and_minimum.y;
    }
    return found;
}
