"""XXH3's 128-bit hash in plain Python, seed 0.

Written from the algorithm's public specification (Cyan4973/xxHash, doc/xxhash_spec.md, "XXH3
algorithm"), since the standard library has none and the domain takes no dependency. It costs
tens of microseconds for one block's bytes, which is all that it is for; the tests compare it
with the `xxhash` package at every length where the algorithm changes its way.
"""

from __future__ import annotations

import struct

_MASK_32 = 0xFFFF_FFFF
_MASK_64 = 0xFFFF_FFFF_FFFF_FFFF

_PRIME32_1 = 0x9E3779B1
_PRIME32_2 = 0x85EBCA77
_PRIME32_3 = 0xC2B2AE3D
_PRIME64_1 = 0x9E3779B185EBCA87
_PRIME64_2 = 0xC2B2AE3D27D4EB4F
_PRIME64_3 = 0x165667B19E3779F9
_PRIME64_4 = 0x85EBCA77C2B2AE63
_PRIME64_5 = 0x27D4EB2F165667C5
_PRIME_MX1 = 0x165667919E3779F9
_PRIME_MX2 = 0x9FB21C651E98DF25

# The specification's default secret of 192 bytes.
_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)

_STRIPE_BYTES = 64
_STRIPES_PER_BLOCK = (len(_SECRET) - _STRIPE_BYTES) // 8
_BLOCK_BYTES = _STRIPE_BYTES * _STRIPES_PER_BLOCK
_EIGHT_WORDS = struct.Struct("<8Q")
_LAST_SECRET = len(_SECRET) - _STRIPE_BYTES
_SECRET_WORDS = tuple(_EIGHT_WORDS.unpack_from(_SECRET, 8 * n) for n in range(_STRIPES_PER_BLOCK))
_SCRAMBLE_WORDS = _EIGHT_WORDS.unpack_from(_SECRET, _LAST_SECRET)
_LAST_STRIPE_WORDS = _EIGHT_WORDS.unpack_from(_SECRET, _LAST_SECRET - 7)


def _read32(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


def _read64(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


def _folded_product(left: int, right: int) -> int:
    product = left * right
    return (product & _MASK_64) ^ (product >> 64)


def _avalanche(value: int) -> int:
    value ^= value >> 37
    value = value * _PRIME_MX1 & _MASK_64
    return value ^ (value >> 32)


def _avalanche_of_xxh64(value: int) -> int:
    value ^= value >> 33
    value = value * _PRIME64_2 & _MASK_64
    value ^= value >> 29
    value = value * _PRIME64_3 & _MASK_64
    return value ^ (value >> 32)


def _swapped(value: int, width_bytes: int) -> int:
    return int.from_bytes(value.to_bytes(width_bytes, "little"), "big")


def _empty(data: bytes) -> tuple[int, int]:
    del data
    low = _read64(_SECRET, 64) ^ _read64(_SECRET, 72)
    high = _read64(_SECRET, 80) ^ _read64(_SECRET, 88)
    return _avalanche_of_xxh64(low), _avalanche_of_xxh64(high)


def _up_to_3(data: bytes) -> tuple[int, int]:
    size = len(data)
    low = (data[0] << 16) | (data[size >> 1] << 24) | data[size - 1] | (size << 8)
    turned = _swapped(low, 4)
    high = ((turned << 13) | (turned >> 19)) & _MASK_32
    low ^= _read32(_SECRET, 0) ^ _read32(_SECRET, 4)
    high ^= _read32(_SECRET, 8) ^ _read32(_SECRET, 12)
    return _avalanche_of_xxh64(low), _avalanche_of_xxh64(high)


def _up_to_8(data: bytes) -> tuple[int, int]:
    size = len(data)
    keyed = _read32(data, 0) | (_read32(data, size - 4) << 32)
    keyed ^= _read64(_SECRET, 16) ^ _read64(_SECRET, 24)
    product = keyed * (_PRIME64_1 + (size << 2) & _MASK_64)
    low, high = product & _MASK_64, product >> 64
    high = high + (low << 1) & _MASK_64
    low ^= high >> 3
    low ^= low >> 35
    low = low * _PRIME_MX2 & _MASK_64
    return low ^ (low >> 28), _avalanche(high)


def _up_to_16(data: bytes) -> tuple[int, int]:
    size = len(data)
    flip_low = _read64(_SECRET, 32) ^ _read64(_SECRET, 40)
    flip_high = _read64(_SECRET, 48) ^ _read64(_SECRET, 56)
    first, last = _read64(data, 0), _read64(data, size - 8)
    product = (first ^ last ^ flip_low) * _PRIME64_1
    low = (product & _MASK_64) + ((size - 1) << 54) & _MASK_64
    last ^= flip_high
    high = (product >> 64) + last + (last & _MASK_32) * (_PRIME32_2 - 1) & _MASK_64
    low ^= _swapped(high, 8)
    mixed = low * _PRIME64_2
    return (
        _avalanche(mixed & _MASK_64),
        _avalanche((mixed >> 64) + high * _PRIME64_2 & _MASK_64),
    )


def _mix_16(data: bytes, at: int, secret_at: int) -> int:
    return _folded_product(
        _read64(data, at) ^ _read64(_SECRET, secret_at),
        _read64(data, at + 8) ^ _read64(_SECRET, secret_at + 8),
    )


def _mix_32(
    low_high: tuple[int, int], data: bytes, at: int, other_at: int, secret_at: int
) -> tuple[int, int]:
    low, high = low_high
    low = low + _mix_16(data, at, secret_at) & _MASK_64
    low ^= _read64(data, other_at) + _read64(data, other_at + 8) & _MASK_64
    high = high + _mix_16(data, other_at, secret_at + 16) & _MASK_64
    high ^= _read64(data, at) + _read64(data, at + 8) & _MASK_64
    return low, high


def _finish_mid(low_high: tuple[int, int], size: int) -> tuple[int, int]:
    low, high = low_high
    total = low + high & _MASK_64
    rest = low * _PRIME64_1 + high * _PRIME64_4 + size * _PRIME64_2 & _MASK_64
    return _avalanche(total), -_avalanche(rest) & _MASK_64


def _up_to_128(data: bytes) -> tuple[int, int]:
    size = len(data)
    mixed = (size * _PRIME64_1 & _MASK_64, 0)
    # Pairs of 16 bytes from both ends, the innermost pair first.
    for step in range((size - 1) // 32, -1, -1):
        mixed = _mix_32(mixed, data, 16 * step, size - 16 * (step + 1), 32 * step)
    return _finish_mid(mixed, size)


def _up_to_240(data: bytes) -> tuple[int, int]:
    size = len(data)
    mixed = (size * _PRIME64_1 & _MASK_64, 0)
    for at in range(0, 128, 32):
        mixed = _mix_32(mixed, data, at, at + 16, at)
    mixed = (_avalanche(mixed[0]), _avalanche(mixed[1]))
    for at in range(128, size - 31, 32):
        mixed = _mix_32(mixed, data, at, at + 16, at - 128 + 3)
    mixed = _mix_32(mixed, data, size - 16, size - 32, 136 - 17 - 16)
    return _finish_mid(mixed, size)


def _accumulate(lanes: list[int], data: bytes, at: int, keys: tuple[int, ...]) -> None:
    words = _EIGHT_WORDS.unpack_from(data, at)
    for lane, (word, key) in enumerate(zip(words, keys, strict=True)):
        keyed = word ^ key
        lanes[lane ^ 1] += word
        lanes[lane] += (keyed & _MASK_32) * (keyed >> 32)
    for lane in range(8):
        lanes[lane] &= _MASK_64


def _merged(lanes: list[int], secret_at: int, start: int) -> int:
    total = start
    for pair in range(4):
        total += _folded_product(
            lanes[2 * pair] ^ _read64(_SECRET, secret_at + 16 * pair),
            lanes[2 * pair + 1] ^ _read64(_SECRET, secret_at + 16 * pair + 8),
        )
    return _avalanche(total & _MASK_64)


def _long(data: bytes) -> tuple[int, int]:
    size = len(data)
    lanes = [
        _PRIME32_3,
        _PRIME64_1,
        _PRIME64_2,
        _PRIME64_3,
        _PRIME64_4,
        _PRIME32_2,
        _PRIME64_5,
        _PRIME32_1,
    ]
    # Every whole stripe but the one that holds the last byte; that one is read from the end.
    for stripe in range((size - 1) // _STRIPE_BYTES):
        place = stripe % _STRIPES_PER_BLOCK
        _accumulate(lanes, data, stripe * _STRIPE_BYTES, _SECRET_WORDS[place])
        if place == _STRIPES_PER_BLOCK - 1:
            for lane, key in enumerate(_SCRAMBLE_WORDS):
                word = lanes[lane]
                lanes[lane] = (word ^ (word >> 47) ^ key) * _PRIME32_1 & _MASK_64
    _accumulate(lanes, data, size - _STRIPE_BYTES, _LAST_STRIPE_WORDS)
    low = _merged(lanes, 11, size * _PRIME64_1 & _MASK_64)
    high = _merged(lanes, _LAST_SECRET - 11, ~(size * _PRIME64_2) & _MASK_64)
    return low, high


# The longest input that each way takes; longer ones go by stripes.
_WAYS = (
    (0, _empty),
    (3, _up_to_3),
    (8, _up_to_8),
    (16, _up_to_16),
    (128, _up_to_128),
    (240, _up_to_240),
)


def xxh3_128_digest(data: bytes) -> bytes:
    """Return XXH3-128 of `data` in canonical order: 16 bytes, the high half first."""
    way = next((way for longest, way in _WAYS if len(data) <= longest), _long)
    low, high = way(data)
    return high.to_bytes(8, "big") + low.to_bytes(8, "big")
