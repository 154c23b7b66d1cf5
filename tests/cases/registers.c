/* SSE, AVX and AVX-512 registers, MXCSR, the x87 control word and the flags of a thread that computes while
 * it is frozen. */
#include <immintrin.h>
#include <stdint.h>

#include "tests/cases/case.h"

#define FILL(reg)     "vmovdqu (%[in]), %%" reg "\n\t"
#define TAKE(reg, at) "vmovdqu %%" reg ", " at "(%[out])\n\t"

/* Keeps values only in registers while it spins `rounds` times; returns 0 if all are unchanged. */
__attribute__((target("avx2"), noinline)) static int spin_avx(uint64_t rounds)
{
	uint64_t in[4] = {0x0123456789abcdef, 0xfedcba9876543210, 0x5555aaaa5555aaaa, 0x1998199819981998},
		 out[16];

	asm volatile(FILL("ymm3") FILL("ymm7") FILL("ymm11")
			     FILL("ymm15") "1:\n\t"
					   "dec %[n]\n\t"
					   "jnz 1b\n\t" TAKE("ymm3", "0") TAKE("ymm7", "32")
						   TAKE("ymm11", "64") TAKE("ymm15", "96")
		     : [n] "+r"(rounds)
		     : [in] "r"(in), [out] "r"(out)
		     : "memory", "xmm3", "xmm7", "xmm11", "xmm15", "cc");
	for (int i = 0; i < 16; i++)
		if (out[i] != in[i % 4])
			return 1;
	return 0;
}

__attribute__((target("avx512f"), noinline)) static int spin_avx512(uint64_t rounds)
{
	uint64_t in[8] = {1, 2, 3, 5, 7, 11, 13, 0xffffffffffffffff}, out[16];
	uint32_t mask = 0xa5a5, mask_out;

	asm volatile("vmovdqu64 (%[in]), %%zmm5\n\tvmovdqu64 (%[in]), %%zmm29\n\tkmovw %[k], "
		     "%%k3\n\t1:\n\tdec %[n]\n\tjnz 1b\n\t"
		     "vmovdqu64 %%zmm5, (%[out])\n\tvmovdqu64 %%zmm29, 64(%[out])\n\tkmovw %%k3, %[ko]"
		     : [n] "+r"(rounds), [ko] "=r"(mask_out)
		     : [in] "r"(in), [out] "r"(out), [k] "r"(mask)
		     : "memory", "xmm5", "xmm29", "k3", "cc");
	for (int i = 0; i < 16; i++)
		if (out[i] != in[i % 8])
			return 1;
	return mask_out != mask;
}

int main(void)
{
	uint32_t mxcsr = (_mm_getcsr() & ~0x6000u) | 0x6000u; /* round toward zero */
	uint16_t control = 0x0f7f, now = 0;
	double third = 0;

	_mm_setcsr(mxcsr);
	asm volatile("fldcw %0" ::"m"(control));
	asm volatile("fld1\n\tfld1\n\tfld1\n\tfaddp\n\tfld1\n\tfaddp\n\tfdivrp" ::
			     : "memory"); /* 1/3 stays on the x87 stack */
	case_ready();
	do {
		if (__builtin_cpu_supports("avx2"))
			CHECK(spin_avx(20000000) == 0);
		if (__builtin_cpu_supports("avx512f"))
			CHECK(spin_avx512(20000000) == 0);
	} while (!case_going());
	CHECK(_mm_getcsr() >> 13 == mxcsr >> 13);
	asm volatile("fnstcw %0" : "=m"(now));
	CHECK(now == control);
	asm volatile("fstpl %0" : "=m"(third));
	CHECK(third > 0.33333 && third < 0.33334);
	case_pass();
}
