/* Memory shared with other processes: ordering, copies, and a checksum. */
#include "internal.h"

#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

void taskd_store_release(uint64_t *address, uint64_t value)
{
    __atomic_store_n(address, value, __ATOMIC_RELEASE);
}

uint64_t taskd_load_acquire(const uint64_t *address)
{
    return __atomic_load_n(address, __ATOMIC_ACQUIRE);
}

void taskd_copy_away(void *to, const void *from, size_t bytes)
{
#ifdef __SSE2__
    /* of a small piece the fence would take longer than the copy: a bias, a scale */
    if (bytes < 4096) {
        memcpy(to, from, bytes);
        return;
    }
    unsigned char *t = to;
    const unsigned char *f = from;
    size_t before = -(uintptr_t)t & 15;
    if (before > bytes)
        before = bytes;
    memcpy(t, f, before);
    t += before, f += before, bytes -= before;
    for (; bytes >= 64; t += 64, f += 64, bytes -= 64) {
        __m128i a = _mm_loadu_si128((const __m128i *)f);
        __m128i b = _mm_loadu_si128((const __m128i *)(f + 16));
        __m128i c = _mm_loadu_si128((const __m128i *)(f + 32));
        __m128i d = _mm_loadu_si128((const __m128i *)(f + 48));
        _mm_stream_si128((__m128i *)t, a);
        _mm_stream_si128((__m128i *)(t + 16), b);
        _mm_stream_si128((__m128i *)(t + 32), c);
        _mm_stream_si128((__m128i *)(t + 48), d);
    }
    memcpy(t, f, bytes);
    /* Streaming stores are weakly ordered: a header set later must not be seen before them. */
    _mm_sfence();
#else
    memcpy(to, from, bytes);
#endif
}

/* XXH64 (Yann Collet, public specification): four lanes that do not wait for each other. */
#define P1 0x9E3779B185EBCA87u
#define P2 0xC2B2AE3D27D4EB4Fu
#define P3 0x165667B19E3779F9u
#define P4 0x85EBCA77C2B2AE63u
#define P5 0x27D4EB2F165667C5u

static inline uint64_t rotate(uint64_t x, int bits)
{
    return (x << bits) | (x >> (64 - bits));
}

static inline uint64_t load64(const unsigned char *p)
{
    uint64_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

static inline uint64_t mix(uint64_t lane, uint64_t input)
{
    return rotate(lane + input * P2, 31) * P1;
}

static inline uint64_t merge(uint64_t hash, uint64_t lane)
{
    return (hash ^ mix(0, lane)) * P1 + P4;
}

uint64_t taskd_checksum(const void *data, size_t bytes, uint64_t seed)
{
    const unsigned char *p = data, *end = p + bytes;
    uint64_t hash = seed + P5;
    if (bytes >= 32) {
        uint64_t a = seed + P1 + P2, b = seed + P2, c = seed, d = seed - P1;
        for (; end - p >= 32; p += 32) {
            a = mix(a, load64(p));
            b = mix(b, load64(p + 8));
            c = mix(c, load64(p + 16));
            d = mix(d, load64(p + 24));
        }
        hash = rotate(a, 1) + rotate(b, 7) + rotate(c, 12) + rotate(d, 18);
        hash = merge(merge(merge(merge(hash, a), b), c), d);
    }
    hash += bytes;
    for (; end - p >= 8; p += 8)
        hash = rotate(hash ^ mix(0, load64(p)), 27) * P1 + P4;
    if (end - p >= 4) {
        uint32_t word;
        memcpy(&word, p, sizeof word);
        hash = rotate(hash ^ (word * P1), 23) * P2 + P3;
        p += 4;
    }
    for (; p < end; p++)
        hash = rotate(hash ^ (*p * P5), 11) * P1;
    hash = (hash ^ (hash >> 33)) * P2;
    hash = (hash ^ (hash >> 29)) * P3;
    return hash ^ (hash >> 32);
}
