// Rows of bfloat16, two numbers in a word, padded with zeros to whole units of eight.
fn weights(row: u32, unit: u32) -> array<vec4f, 2> {
    let at = row * ROW_WORDS + unit * 4u;
    var found: array<vec4f, 2>;
    for (var half = 0u; half < 2u; half++) {
        let one = stored[at + 2u * half];
        let other = stored[at + 2u * half + 1u];
        found[half] = bitcast<vec4f>(vec4u(one << 16u, one & 0xffff0000u, other << 16u, other & 0xffff0000u));
    }
    return found;
}
