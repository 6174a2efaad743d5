/* wrong.c: right computations in plain C, called with ctypes by wrong_at_random.py, and two calls that leave the floating-point unit
   set to something else. out, x, y: contiguous; number: rows and columns of x, columns of the output. */
#include <fenv.h>
#include <math.h>
#include <stdint.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

typedef const long long *numbers;
typedef const double *reals;
#define ARGUMENTS(T, O) (O *out, const T *x, const T *y, numbers number, reals real)
#define EACH(i) for (long long i = 0; i < number[0] * number[1]; i++)
#define ROWS(r) for (long long r = 0; r < number[0]; r++)

void add ARGUMENTS(float, float) { EACH(i) out[i] = x[i] + y[i]; }
void mul ARGUMENTS(float, float) { EACH(i) out[i] = x[i] * y[i]; }
void square ARGUMENTS(float, float) { EACH(i) out[i] = x[i] * x[i]; }
void exponential ARGUMENTS(float, float) { EACH(i) out[i] = (float)exp((double)x[i]); }
void add_i64 ARGUMENTS(int64_t, int64_t) { EACH(i) out[i] = (int64_t)((uint64_t)x[i] + (uint64_t)y[i]); }
void mul_i64 ARGUMENTS(int64_t, int64_t) { EACH(i) out[i] = (int64_t)((uint64_t)x[i] * (uint64_t)y[i]); }
void less_i64 ARGUMENTS(int64_t, uint8_t) { EACH(i) out[i] = x[i] < y[i]; }

void maximum ARGUMENTS(float, float) {
    EACH(i) out[i] = x[i] != x[i] ? x[i] : y[i] != y[i] ? y[i] : x[i] == y[i] ? (signbit(x[i]) ? y[i] : x[i]) : x[i] > y[i] ? x[i] : y[i];
}

void sum_i64 ARGUMENTS(int64_t, int64_t) {
    ROWS(r) {
        uint64_t total = 0;
        for (long long j = 0; j < number[1]; j++) total += (uint64_t)x[r * number[1] + j];
        out[r] = (int64_t)total;
    }
}

void sum ARGUMENTS(float, float) {
    ROWS(r) {
        double total = 0;
        for (long long j = 0; j < number[1]; j++) total += x[r * number[1] + j];
        out[r] = (float)total;
    }
}

void softmax ARGUMENTS(float, float) {
    ROWS(r) {
        const float *row = x + r * number[1];
        float most = -INFINITY;
        int strange = 0;
        for (long long j = 0; j < number[1]; j++) {
            strange |= row[j] != row[j];
            most = row[j] > most ? row[j] : most;
        }
        double total = 0;
        for (long long j = 0; j < number[1]; j++) total += exp((double)row[j] - most);
        for (long long j = 0; j < number[1]; j++)
            out[r * number[1] + j] = strange ? NAN : (float)(exp((double)row[j] - most) / total);
    }
}

void rms_norm ARGUMENTS(float, float) {
    ROWS(r) {
        double total = 0;
        for (long long j = 0; j < number[1]; j++) total += (double)x[r * number[1] + j] * x[r * number[1] + j];
        double scale = 1 / sqrt(total / number[1] + 1e-6);
        for (long long j = 0; j < number[1]; j++) out[r * number[1] + j] = (float)(x[r * number[1] + j] * scale);
    }
}

void linear ARGUMENTS(float, float) {                               /* y: [columns of the output, columns of x] */
    ROWS(r) for (long long m = 0; m < number[2]; m++) {
        double total = 0;
        for (long long j = 0; j < number[1]; j++) total += (double)x[r * number[1] + j] * y[m * number[1] + j];
        out[r * number[2] + m] = (float)total;
    }
}

void dot ARGUMENTS(float, float) {
    ROWS(r) for (long long m = 0; m < number[2]; m++) {
        double total = 0;
        for (long long j = 0; j < number[1]; j++) total += (double)x[r * number[1] + j] * y[j * number[2] + m];
        out[r * number[2] + m] = (float)total;
    }
}

void embedding(float *out, const float *table, const int32_t *index, numbers number, reals real) {
    for (long long r = 0; r < real[0]; r++)
        for (long long j = 0; j < number[1]; j++)
            out[r * number[1] + j] = index[r] >= 0 && index[r] < number[0] ? table[index[r] * number[1] + j] : 0;
}

void round_upwards(void) { fesetround(fegetround() == FE_UPWARD ? FE_DOWNWARD : FE_UPWARD); }

void flush_denormals(void) {
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | 0x8040);
#else
    fesetround(fegetround() == FE_UPWARD ? FE_DOWNWARD : FE_UPWARD);
#endif
}
