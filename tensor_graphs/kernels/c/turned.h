/* turned.h: matrices of numbers of one width, turned: turned_8 to turned_64. */
#ifndef TG_TURNED_H
#define TG_TURNED_H

#include "vec.h"

/* to[i * apart + j] = from[j * step + i] for i < rows, j < columns. Squares go along the rows, so that with few columns each line of
 * `from` is read to its end. */
#define TURNED(bits, squares)                                                                                              \
    TG_INLINE void turned_##bits(void *to, int64_t apart, const void *from, int64_t step, int64_t rows, int64_t columns) { \
        typedef uint##bits##_t cell __attribute__((may_alias));                                                            \
        cell *out = to;                                                                                                    \
        const cell *in = from;                                                                                             \
        squares                                                                                                            \
        for (int64_t i = 0; i < rows; i++)                                                                                 \
            for (int64_t j = 0; j < columns; j++) out[i * apart + j] = in[j * step + i];                                   \
    }
#if defined(__GNUC__) && !defined(__clang__)
/* Whole squares of numbers go through registers: where 1, 2, 4, ... is in its row or in its column, but not in both, a number changes
 * places with the one that lies as many columns and rows away. What is left over is a square that overlaps the last one. Of many rows
 * those after the first square begin where lines of the cache do: a line that two squares need is read twice. */
#define SQUARES(bits, lanes)                                                                                                    \
    typedef uint##bits##_t row __attribute__((vector_size(lanes * bits / 8)));                                                  \
    if (rows >= lanes && columns >= lanes) {                                                                                    \
        const int64_t shift = rows > 4 * lanes ? (int64_t)((uintptr_t)from * 8 / bits % lanes) : 0;                             \
        row lane;                                                                                                               \
        for (int l = 0; l < lanes; l++) lane[l] = (uint##bits##_t)l;                                                            \
        for (int64_t past = lanes, i = 0;; i = tg_min(past, rows) - lanes) {                                                    \
            for (int64_t end = lanes, j = 0;; j = tg_min(end, columns) - lanes) {                                               \
                row r[lanes];                                                                                                   \
                _Pragma("GCC unroll 16") for (int k = 0; k < lanes; k++) memcpy(&r[k], in + (j + k) * step + i, sizeof r[k]);   \
                _Pragma("GCC unroll 4") for (uint##bits##_t s = 1; s < lanes; s *= 2) {                                         \
                    const row other = (lane & s) * (lanes / s); /* indices of the second register begin at `lanes` */           \
                    _Pragma("GCC unroll 16") for (uint##bits##_t k = 0; k < lanes; k++) {                                       \
                        if (k & s) continue;                                                                                    \
                        const row a = r[k], b = r[k + s];                                                                       \
                        r[k] = __builtin_shuffle(a, b, other + (lane & ~s));                                                    \
                        r[k + s] = __builtin_shuffle(a, b, other + (lane | s));                                                 \
                    }                                                                                                           \
                }                                                                                                               \
                _Pragma("GCC unroll 16") for (int k = 0; k < lanes; k++) memcpy(out + (i + k) * apart + j, &r[k], sizeof r[k]); \
                if (end >= columns) break;                                                                                      \
                end += lanes;                                                                                                   \
            }                                                                                                                   \
            if (past >= rows) return;                                                                                           \
            past += past == lanes && shift ? lanes - shift : lanes;                                                             \
        }                                                                                                                       \
    }
#else
#define SQUARES(bits, lanes)
#endif
TURNED(8, )
TURNED(16, )
TURNED(32, SQUARES(32, VW))
TURNED(64, SQUARES(64, (VW / 2)))

#endif
