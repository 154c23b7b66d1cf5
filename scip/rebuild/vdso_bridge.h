/*
 * Leads the functions of an old vdso to those of the present one.
 *
 * A program has the addresses of the vdso's functions in many places: glibc's tables, the Go runtime, pages
 * that it has compiled. So the text of the kernel on which it was saved stays where it was, as ordinary
 *memory, and the first instructions of each function are replaced by a jump to the function of the same name
 *in the running kernel's vdso, which is mapped elsewhere:
 *
 *	49 bb ADDRESS	movabs $ADDRESS, %r11	(r11 is free between the call and the function's first use)
 *	41 ff e3	jmp *%r11
 *
 * A function that the running kernel lacks becomes its system call, which has the same arguments; one that
 *has no system call, or is unknown, returns -ENOSYS, as the functions do that a kernel cannot serve. No other
 * instruction of the old text is executed again: no thread of an image is inside the vdso (dump_vdso.c).
 */
#ifndef SCIP_REBUILD_VDSO_BRIDGE_H
#define SCIP_REBUILD_VDSO_BRIDGE_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* Patches `text`, a copy of `old` of at least old_len bytes, for the vdso `now` mapped at now_at. Pure.
 * -ENOTSUP if `old` cannot be understood or a function has no room for the jump; -EINVAL if `now` cannot.
 * With text NULL: says only whether it is possible. */
must_check int vdso_bridge_patch(const uint8_t *old, size_t old_len, const uint8_t *now, size_t now_len,
				 uint64_t now_at, uint8_t *text, struct err *err);

#endif
