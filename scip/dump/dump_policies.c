/* Collects the NUMA policy of each mapping. A mapping has one policy, because mbind() splits mappings.
 * dump_threads.c collects those of threads. */
#include <errno.h>
#include <linux/mempolicy.h>
#include <string.h>
#include <sys/syscall.h>

#include "proto/message.h"
#include "scip/dump/dump_parts.h"

enum { AT_ONCE = 256 };

int dump_add_policy(const struct dump_policy *got, Pbeam__MemoryPolicy **out)
{
	size_t len = sizeof(got->nodes);

	if (got->mode == MPOL_DEFAULT)
		return 0;
	*out = message_new(&pbeam__memory_policy__descriptor);
	if (!*out)
		return -ENOMEM;
	(*out)->mode = got->mode;
	while (len && !((const uint8_t *)got->nodes)[len - 1])
		len--;
	return message_bytes(&(*out)->nodes, got->nodes, len);
}

static bool has_policy(const Pbeam__Mapping *mapping)
{
	return mapping->kind != PBEAM__MAPPING__KIND__VDSO && mapping->kind != PBEAM__MAPPING__KIND__VVAR &&
	       mapping->kind != PBEAM__MAPPING__KIND__VSYSCALL;
}

static int ask_policies(struct dump *dump, size_t first, size_t end, struct err *err)
{
	Pbeam__Memory *memory = dump->out->memory;
	struct dump_policy *got;
	struct batch *batch;
	struct taddr at;
	int r = batch_begin(dump->process, &batch, err);

	if (r < 0)
		return r;
	r = batch_data(batch, NULL, (end - first) * sizeof(*got), &at);
	if (r >= 0)
		memset(batch_local(batch, at), 0, (end - first) * sizeof(*got));
	for (size_t i = first; i < end && r >= 0; i++) {
		uint64_t where = at.a + (i - first) * sizeof(*got);

		if (has_policy(memory->mappings[i]))
			r = batch_add(batch, INJECT_CALL_ANY, SYS_get_mempolicy,
				      remote_args(where + offsetof(struct dump_policy, mode),
						  where + offsetof(struct dump_policy, nodes),
						  DUMP_POLICY_NODES, memory->mappings[i]->start,
						  MPOL_F_ADDR));
	}
	if (r >= 0)
		r = batch_run(batch, dump->caller, err);
	got = r >= 0 ? batch_local(batch, at) : NULL;
	for (size_t i = first; i < end && r >= 0; i++)
		r = dump_add_policy(&got[i - first], &memory->mappings[i]->policy);
	batch_end(batch);
	return r;
}

int dump_policies(struct dump *dump, struct err *err)
{
	size_t n = dump->out->memory->n_mappings;
	int r = 0;

	if (!dump_may_call(dump, SYS_get_mempolicy))
		return 0;
	for (size_t first = 0; first < n && r >= 0; first += AT_ONCE)
		r = ask_policies(dump, first, first + AT_ONCE < n ? first + AT_ONCE : n, err);
	return r < 0 ? err_wrap(err, r, "NUMA policies") : 0;
}
