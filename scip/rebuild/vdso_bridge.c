#include "scip/rebuild/vdso_bridge.h"

#include <errno.h>
#include <string.h>
#include <sys/syscall.h>

#include "base/bytes.h"
#include "scip/rebuild/vdso_symbols.h"
#include "syscalls/syscall_table.h"

enum { CODE_MAX = 22 };

struct code {
	uint8_t bytes[CODE_MAX];
	size_t len;
};

static void put(struct code *code, const uint8_t *bytes, size_t len)
{
	memcpy(code->bytes + code->len, bytes, len);
	code->len += len;
}

/* movabs $to, %r11; jmp *%r11 */
static struct code code_jump(uint64_t to)
{
	struct code code = {{0}, 0};

	put(&code, (const uint8_t[]){0x49, 0xbb}, 2);
	put(&code, (const uint8_t *)&to, sizeof(to));
	put(&code, (const uint8_t[]){0x41, 0xff, 0xe3}, 3);
	return code;
}

/* mov $call, %eax; syscall; ret */
static struct code code_call(uint32_t call)
{
	struct code code = {{0}, 0};

	put(&code, (const uint8_t[]){0xb8}, 1);
	put(&code, (const uint8_t *)&call, sizeof(call));
	put(&code, (const uint8_t[]){0x0f, 0x05, 0xc3}, 3);
	return code;
}

/* mov $-ENOSYS, %rax; ret */
static struct code code_nosys(void)
{
	struct code code = {{0}, 0};

	put(&code, (const uint8_t[]){0x48, 0xc7, 0xc0, 0x100 - ENOSYS, 0xff, 0xff, 0xff, 0xc3}, 8);
	return code;
}

/* getrandom(buffer, len, flags, state, state_len): with state_len -1 it describes the state that it needs,
 * and no system call does that (linux, lib/vdso/getrandom.c). cmp $-1, %r8; je to the second part. */
static struct code code_getrandom(void)
{
	struct code code = {{0}, 0}, call = code_call(SYS_getrandom), nosys = code_nosys();

	put(&code, (const uint8_t[]){0x49, 0x83, 0xf8, 0xff, 0x74, (uint8_t)call.len}, 6);
	put(&code, call.bytes, call.len);
	put(&code, nosys.bytes, nosys.len);
	return code;
}

static const struct vdso_symbol *find_symbol(const struct vdso_symbol *list, int n, const char *name)
{
	for (int i = 0; i < n; i++)
		if (!strcmp(list[i].name, name))
			return &list[i];
	return NULL;
}

/* A function has the name and the arguments of its system call. */
static struct code code_missing(const char *name)
{
	static const char prefix[] = "__vdso_";
	int64_t nr;

	if (!strncmp(name, prefix, sizeof(prefix) - 1))
		name += sizeof(prefix) - 1;
	if (!strcmp(name, "getrandom"))
		return code_getrandom();
	nr = syscall_number(name);
	return nr >= 0 ? code_call((uint32_t)nr) : code_nosys();
}

static int compare_offsets(const void *a, const void *b)
{
	const struct vdso_symbol *x = a, *y = b;

	return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* The bytes from function i to the next one, or to the end. */
static uint64_t room_of(const struct vdso_symbol *list, int n, int i, size_t len)
{
	for (int next = i + 1; next < n; next++)
		if (list[next].offset != list[i].offset)
			return list[next].offset - list[i].offset;
	return len - list[i].offset;
}

int vdso_bridge_patch(const uint8_t *old, size_t old_len, const uint8_t *now, size_t now_len, uint64_t now_at,
		      uint8_t *text, struct err *err)
{
	struct vdso_symbol was[VDSO_SYMBOLS_MAX], is[VDSO_SYMBOLS_MAX];
	int nwas = vdso_symbols_read(old, old_len, was), nis = vdso_symbols_read(now, now_len, is);

	if (nwas < 0)
		return err_set(err, -ENOTSUP,
			       "the image's copy of its kernel's vdso has no list of functions");
	if (nis < 0)
		return err_set(err, -EINVAL, "this kernel's vdso has no list of functions");
	bytes_sort(was, (size_t)nwas, sizeof(was[0]), compare_offsets);
	for (int i = 0; i < nwas; i++) {
		const struct vdso_symbol *to = find_symbol(is, nis, was[i].name);
		struct code code = to ? code_jump(now_at + to->offset) : code_missing(was[i].name);

		/* A function has several names: one that exists there prevails. */
		if (!to && i > 0 && was[i - 1].offset == was[i].offset)
			continue;
		if (code.len > room_of(was, nwas, i, old_len))
			return err_set(
				err, -ENOTSUP,
				"function %s of the image's vdso is shorter than a jump to this kernel's",
				was[i].name);
		if (text)
			memcpy(text + was[i].offset, code.bytes, code.len);
	}
	return 0;
}
