"""JSON as costly for its reader as a line of four megabytes may be; the standard library only."""

LIMIT = 4 * 1024 * 1024
VALUES = 47_000
SHAPES = ("keys", "pairs", "text", "escapes", "digits")
TOO_MANY = ("lists", "numbers", "too-many-keys")


def large(shape, around=200):
    """Return one value; `around` is the room for what stands around it in its line."""
    room = LIMIT - around
    if shape == "text":
        return '"' + "x" * room + '"'
    if shape == "escapes":  # sixteen of them count as a value
        return '"' + "\\n" * (VALUES * 16) + '"'
    if shape == "digits":  # thirty-two of them do
        return "[" + ",".join(["1" * 640] * (VALUES // 21)) + "]"
    if shape == "keys":
        return "{" + ",".join('"%06x":0' % n for n in range(VALUES)) + "}"
    if shape == "too-many-keys":
        return "{" + ",".join('"%06x":0' % n for n in range(room // 11)) + "}"
    if shape == "pairs":
        return "[" + ",".join(['["a[",1]'] * (VALUES // 3)) + "]"
    unit = {"lists": "[]", "numbers": "0"}[shape]
    return "[" + ",".join([unit] * (room // (len(unit) + 1))) + "]"
