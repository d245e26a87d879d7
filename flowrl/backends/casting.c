/* float32 to bfloat16, rounded to the nearest even, as fast as memory is: see casting.py.
 *
 * Four pages are read side by side, each a little ahead of where it is used, for one stream of reads does not keep the
 * memory busy; and what is written goes past the caches, which nothing here reads again. */
#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__)
#include <emmintrin.h>
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLONES
#endif

enum { LINE = 32, PAGE = 1024, STREAMS = 4 }; /* numbers: of a line of results, of a page, of pages at once */

static inline __attribute__((always_inline)) uint16_t rounded(uint32_t bits)
{
    uint32_t nearest = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    uint32_t nan = (bits >> 16) | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : nearest);
}

static inline __attribute__((always_inline)) void line(uint16_t *restrict to, const uint32_t *restrict from)
{
#if defined(__x86_64__)
    uint16_t made[LINE] __attribute__((aligned(64)));
    for (int i = 0; i < LINE; i++)
        made[i] = rounded(from[i]);
    for (int i = 0; i < 4; i++)
        _mm_stream_si128((__m128i *)to + i, _mm_load_si128((const __m128i *)made + i));
#else
    for (int i = 0; i < LINE; i++)
        to[i] = rounded(from[i]);
#endif
}

CLONES static void cast(uint16_t *restrict to, const uint32_t *restrict from, size_t count)
{
    size_t done = 0, block = (size_t)PAGE * STREAMS;
    for (; done < count && ((uintptr_t)(to + done) & 63); done++)
        to[done] = rounded(from[done]);
    for (; done + block <= count; done += block)
        for (size_t place = done; place < done + PAGE; place += LINE)
            for (size_t at = place; at < place + block; at += PAGE) {
                __builtin_prefetch(from + at + block);
                __builtin_prefetch(from + at + block + LINE / 2);
                line(to + at, from + at);
            }
    for (; done + LINE <= count; done += LINE)
        line(to + done, from + done);
    for (; done < count; done++)
        to[done] = rounded(from[done]);
}

/* Each of `parts` arrays: `counts` numbers `from` one place `to` another. */
void flowrl_cast(size_t parts, uint16_t *const *to, const uint32_t *const *from, const size_t *counts)
{
    for (size_t part = 0; part < parts; part++)
        cast(to[part], from[part], counts[part]);
#if defined(__x86_64__)
    _mm_sfence();
#endif
}
