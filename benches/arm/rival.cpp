// Calls one of ggml's products with many rows so many times, for `run` beside this file.
#include <cstdlib>
#include <cstring>
#include <vector>

extern "C" {
#define PRODUCT(name) void name(int, float *, size_t, const void *, const void *, int, int);
PRODUCT(ggml_gemm_q4_0_4x4_q8_0) PRODUCT(ggml_gemm_q4_0_4x8_q8_0)
PRODUCT(ggml_gemm_q8_0_4x4_q8_0) PRODUCT(ggml_gemm_q8_0_4x8_q8_0)
PRODUCT(ggml_gemm_q4_K_8x4_q8_K) PRODUCT(ggml_gemm_q4_K_8x8_q8_K)
PRODUCT(ggml_gemm_q6_K_8x4_q8_K) PRODUCT(ggml_gemm_q6_K_8x8_q8_K)
// Named by that file, and not called here.
void ggml_gemm_q4_0_8x8_q8_0_generic(int, float *, size_t, const void *, const void *, int, int) { abort(); }
void ggml_gemv_q4_0_8x8_q8_0_generic(int, float *, size_t, const void *, const void *, int, int) { abort(); }
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    struct { const char *name; decltype(&ggml_gemm_q4_0_4x4_q8_0) product; } all[] = {
        {"Q4_0 sdot", ggml_gemm_q4_0_4x4_q8_0}, {"Q4_0 smmla", ggml_gemm_q4_0_4x8_q8_0},
        {"Q8_0 sdot", ggml_gemm_q8_0_4x4_q8_0}, {"Q8_0 smmla", ggml_gemm_q8_0_4x8_q8_0},
        {"Q4_K sdot", ggml_gemm_q4_K_8x4_q8_K}, {"Q4_K smmla", ggml_gemm_q4_K_8x8_q8_K},
        {"Q6_K sdot", ggml_gemm_q6_K_8x4_q8_K}, {"Q6_K smmla", ggml_gemm_q6_K_8x8_q8_K},
    };
    const int cols = 2048, inputs = 64, rows = 256;
    std::vector<unsigned char> weights(2 * cols * rows, 1), x(2 * cols * inputs, 1);
    std::vector<float> out(inputs * rows);
    for (auto &one : all)
        if (!strcmp(one.name, argv[1]))
            for (int i = 0; i < atoi(argv[2]); i++)
                one.product(cols, out.data(), rows, weights.data(), x.data(), inputs, rows);
}
