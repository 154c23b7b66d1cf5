/* NUMA policies: of each thread (dump_threads.c asks with all else), and of each mapping, which is one
 * policy's from end to end: mbind() splits them. */
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
	int rc = batch_begin(dump->process, &batch, err);

	if (rc < 0)
		return rc;
	rc = batch_data(batch, NULL, (end - first) * sizeof(*got), &at);
	if (rc >= 0)
		memset(batch_local(batch, at), 0, (end - first) * sizeof(*got));
	for (size_t i = first; i < end && rc >= 0; i++) {
		uint64_t where = at.a + (i - first) * sizeof(*got);

		if (has_policy(memory->mappings[i]))
			rc = batch_add(batch, INJECT_CALL_ANY, SYS_get_mempolicy,
				       remote_args(where + offsetof(struct dump_policy, mode),
						   where + offsetof(struct dump_policy, nodes),
						   DUMP_POLICY_NODES, memory->mappings[i]->start,
						   MPOL_F_ADDR));
	}
	if (rc >= 0)
		rc = batch_run(batch, dump->caller, err);
	got = rc >= 0 ? batch_local(batch, at) : NULL;
	for (size_t i = first; i < end && rc >= 0; i++)
		rc = dump_add_policy(&got[i - first], &memory->mappings[i]->policy);
	batch_end(batch);
	return rc;
}

int dump_policies(struct dump *dump, struct err *err)
{
	size_t n = dump->out->memory->n_mappings;
	int rc = 0;

	if (!dump_may_call(dump, SYS_get_mempolicy))
		return 0;
	for (size_t first = 0; first < n && rc >= 0; first += AT_ONCE)
		rc = ask_policies(dump, first, first + AT_ONCE < n ? first + AT_ONCE : n, err);
	return rc < 0 ? err_wrap(err, rc, "NUMA policies") : 0;
}
