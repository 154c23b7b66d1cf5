/* NUMA policies of threads and mappings. */
#include <errno.h>
#include <string.h>
#include <sys/syscall.h>

#include "base/bytes.h"
#include "scip/fill/fill_batch.h"

enum { NODES = 1025, NODE_BYTES = 128 };

/* Copies the node mask to memory that the husk can read. */
static int put_nodes(struct fill *fill, const Pbeam__MemoryPolicy *saved, uint64_t *where)
{
	uint8_t nodes[NODE_BYTES] = {0};
	int r = fill_reserve(fill, 1, sizeof(nodes) + 64);

	if (saved->nodes.len > sizeof(nodes))
		return err_set(fill->err, -EINVAL, "a NUMA policy of %zu bytes", saved->nodes.len);
	bytes_copy(nodes, saved->nodes.data, saved->nodes.len);
	return r < 0 ? r : fill_data(fill, nodes, sizeof(nodes), where);
}

int fill_policy_mapping(struct fill *fill, const Pbeam__Mapping *map)
{
	uint64_t where;
	int r = map->policy ? put_nodes(fill, map->policy, &where) : 0;

	if (r < 0 || !map->policy)
		return r;
	return fill_try(
		fill, SYS_mbind,
		remote_args(map->start, map->end - map->start, (uint64_t)map->policy->mode, where, NODES, 0));
}

int fill_policy_thread(struct fill *fill, const Pbeam__Thread *saved)
{
	uint64_t where;
	int r = saved->policy ? put_nodes(fill, saved->policy, &where) : 0;

	if (r < 0 || !saved->policy)
		return r;
	return fill_try(fill, SYS_set_mempolicy, remote_args((uint64_t)saved->policy->mode, where, NODES));
}
