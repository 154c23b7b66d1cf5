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

/* Asks for those from number `first` on. */
static int ask_from(struct dump *dump, struct batch *batch, size_t first, struct dump_asked *asked)
{
	Pbeam__Memory *memory = dump->out->memory;
	int r;

	asked->n = memory->n_mappings - first < AT_ONCE ? memory->n_mappings - first : AT_ONCE;
	r = batch_data(batch, NULL, asked->n * sizeof(struct dump_policy), &asked->at);
	for (size_t i = 0; i < asked->n && r >= 0; i++) {
		uint64_t where = asked->at.a + i * sizeof(struct dump_policy);
		const Pbeam__Mapping *mapping = memory->mappings[first + i];

		if (has_policy(mapping))
			r = batch_add(batch, INJECT_CALL_ANY, SYS_get_mempolicy,
				      remote_args(where + offsetof(struct dump_policy, mode),
						  where + offsetof(struct dump_policy, nodes),
						  DUMP_POLICY_NODES, mapping->start, MPOL_F_ADDR));
	}
	return r;
}

static int take_from(struct dump *dump, struct batch *batch, size_t first, const struct dump_asked *asked)
{
	const struct dump_policy *got = batch_local(batch, asked->at);
	int r = 0;

	for (size_t i = 0; i < asked->n && r >= 0; i++)
		r = dump_add_policy(&got[i], &dump->out->memory->mappings[first + i]->policy);
	return r;
}

int dump_ask_policies(struct dump *dump, struct batch *batch, struct dump_asked *asked)
{
	return dump_may_call(dump, SYS_get_mempolicy) ? ask_from(dump, batch, 0, asked) : 0;
}

int dump_take_policies(struct dump *dump, struct batch *batch, const struct dump_asked *asked)
{
	return asked->n ? take_from(dump, batch, 0, asked) : 0;
}

int dump_policies(struct dump *dump, struct err *err)
{
	int r = 0;

	if (!dump_may_call(dump, SYS_get_mempolicy))
		return 0;
	for (size_t first = AT_ONCE; first < dump->out->memory->n_mappings && r >= 0; first += AT_ONCE) {
		struct dump_asked asked = {.n = 0};
		struct batch *batch;

		r = batch_begin(dump->process, &batch, err);
		if (r < 0)
			break;
		r = ask_from(dump, batch, first, &asked);
		if (r >= 0)
			r = batch_run(batch, dump->caller, err);
		if (r >= 0)
			r = take_from(dump, batch, first, &asked);
		batch_end(batch);
	}
	return r < 0 ? err_wrap(err, r, "NUMA policies") : 0;
}
