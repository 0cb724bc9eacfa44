/* HMAC-SHA-256 (FIPS 180-4, RFC 2104) of short messages under one key: a record's digest. What is
 * long is hashed by OpenSSL, which uses the processor's instructions for it, and takes longer to
 * begin than this takes to end. */
#include "internal.h"

#include <string.h>

static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static const uint32_t FIRST[8] = {
    0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

#define BLOCK 64

static inline uint32_t right(uint32_t x, int bits)
{
    return (x >> bits) | (x << (32 - bits));
}

static inline uint32_t load(const unsigned char *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static inline void store(unsigned char *p, uint32_t x)
{
    p[0] = (unsigned char)(x >> 24);
    p[1] = (unsigned char)(x >> 16);
    p[2] = (unsigned char)(x >> 8);
    p[3] = (unsigned char)x;
}

static void add_block(uint32_t state[8], const unsigned char *block)
{
    uint32_t w[64];
    for (int i = 0; i < 16; i++)
        w[i] = load(block + 4 * i);
    for (int i = 16; i < 64; i++) {
        uint32_t x = w[i - 15], y = w[i - 2];
        w[i] = w[i - 16] + (right(x, 7) ^ right(x, 18) ^ (x >> 3)) + w[i - 7] +
               (right(y, 17) ^ right(y, 19) ^ (y >> 10));
    }
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
    for (int i = 0; i < 64; i++) {
        uint32_t t = h + (right(e, 6) ^ right(e, 11) ^ right(e, 25)) + ((e & f) ^ (~e & g)) +
                     K[i] + w[i];
        uint32_t u = (right(a, 2) ^ right(a, 13) ^ right(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
        h = g, g = f, f = e, e = d + t;
        d = c, c = b, b = a, a = t + u;
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d;
    state[4] += e, state[5] += f, state[6] += g, state[7] += h;
}

/* The hash of what `state` has seen, which is one block, and of `data` after it. */
static void end(const uint32_t begun[8], const unsigned char *data, size_t bytes,
                unsigned char out[TASKD_DIGEST])
{
    uint32_t state[8];
    unsigned char last[2 * BLOCK] = {0};
    uint64_t bits = ((uint64_t)bytes + BLOCK) * 8;
    memcpy(state, begun, sizeof state);
    for (; bytes >= BLOCK; data += BLOCK, bytes -= BLOCK)
        add_block(state, data);
    if (bytes > 0)
        memcpy(last, data, bytes);
    last[bytes] = 0x80;
    size_t whole = bytes + 9 <= BLOCK ? BLOCK : 2 * BLOCK;
    store(last + whole - 8, (uint32_t)(bits >> 32));
    store(last + whole - 4, (uint32_t)bits);
    for (size_t at = 0; at < whole; at += BLOCK)
        add_block(state, last + at);
    for (int i = 0; i < 8; i++)
        store(out + 4 * i, state[i]);
}

int taskd_keyed(const void *key, size_t bytes, struct taskd_keyed *out)
{
    unsigned char inner[BLOCK] = {0}, outer[BLOCK];
    if (key == NULL || out == NULL || bytes > BLOCK)
        return -EINVAL;
    memcpy(inner, key, bytes);
    memcpy(outer, inner, BLOCK);
    for (int i = 0; i < BLOCK; i++) {
        inner[i] ^= 0x36;
        outer[i] ^= 0x5c;
    }
    memcpy(out->inner, FIRST, sizeof FIRST);
    memcpy(out->outer, FIRST, sizeof FIRST);
    add_block(out->inner, inner);
    add_block(out->outer, outer);
    return 0;
}

void taskd_digest(const struct taskd_keyed *keyed, const void *data, size_t bytes,
                  unsigned char out[TASKD_DIGEST])
{
    unsigned char hash[TASKD_DIGEST];
    end(keyed->inner, data, bytes, hash);
    end(keyed->outer, hash, sizeof hash, out);
}
