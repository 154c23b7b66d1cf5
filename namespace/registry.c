#include "namespace/registry.h"

#include <errno.h>
#include <string.h>

void registry_refuse(const struct err *err, registry_done_fn done, void *arg)
{
	Pbeam__RegistryReply reply = PBEAM__REGISTRY_REPLY__INIT;

	reply.code = err->code;
	reply.text = (char *)(uintptr_t)err->text;
	done(arg, &reply);
}

int registry_check_key(const char *key, bool may_be_empty, struct err *err)
{
	size_t n = strlen(key);

	if (n >= REGISTRY_KEY_MAX || (!n && !may_be_empty))
		return err_set(err, -EINVAL, "a key of %zu bytes is none", n);
	for (size_t i = 0; i < n; i++)
		if ((unsigned char)key[i] <= 32 || (unsigned char)key[i] >= 127)
			return err_set(err, -EINVAL, "a key has printable characters only");
	return 0;
}

static int check_sets(Pbeam__RegistryRequest *const *sets, size_t n, struct err *err)
{
	int r = n <= REGISTRY_SETS_MAX ? 0 : err_set(err, -E2BIG, "%zu entries at once are too many", n);

	for (size_t i = 0; i < n && r == 0; i++) {
		r = registry_check_key(sets[i]->key, false, err);
		if (r == 0 && (sets[i]->n_all || sets[i]->value.len > REGISTRY_VALUE_MAX))
			r = err_set(err, -EINVAL, "%s: this is no value of an entry", sets[i]->key);
	}
	return r;
}

static void carry_out(const struct registry *registry, const Pbeam__RegistryRequest *request,
		      const char *host, registry_done_fn done, void *arg, struct err *err)
{
	const struct registry_operations *operations = registry->operations;
	Pbeam__RegistryRequest *one = (Pbeam__RegistryRequest *)(uintptr_t)request;

	switch (request->operation) {
	case PBEAM__REGISTRY_REQUEST__OPERATION__LEASE:
		if (registry_check_key(request->key, false, err) < 0)
			return;
		if (strncmp(request->key, REGISTRY_LEASE, strlen(REGISTRY_LEASE)) != 0)
			err_set(err, -EINVAL, "%s: keys of ranges begin with " REGISTRY_LEASE, request->key);
		else if (!request->count || request->count > REGISTRY_NUMBERS_END)
			err_set(err, -EINVAL, "%s: %llu numbers cannot be leased", request->key,
				(unsigned long long)request->count);
		else
			operations->lease(registry->engine, request->key, request->count, host, done, arg);
		return;
	case PBEAM__REGISTRY_REQUEST__OPERATION__SET:
		if (request->n_all && check_sets(request->all, request->n_all, err) == 0)
			operations->set(registry->engine, request->all, request->n_all, host, done, arg);
		else if (!request->n_all && check_sets(&one, 1, err) == 0)
			operations->set(registry->engine, &one, 1, host, done, arg);
		return;
	case PBEAM__REGISTRY_REQUEST__OPERATION__GET:
		if (registry_check_key(request->key, false, err) == 0)
			operations->get(registry->engine, request->key, done, arg);
		return;
	case PBEAM__REGISTRY_REQUEST__OPERATION__LIST:
		if (registry_check_key(request->key, true, err) == 0)
			operations->list(registry->engine, request->key, done, arg);
		return;
	case PBEAM__REGISTRY_REQUEST__OPERATION__NONE:
	case _PBEAM__REGISTRY_REQUEST__OPERATION_IS_INT_SIZE:
	default:
		err_set(err, -EINVAL, "the registry has no operation %d", (int)request->operation);
	}
}

void registry_carry_out(const struct registry *registry, const Pbeam__RegistryRequest *request,
			const char *host, registry_done_fn done, void *arg)
{
	struct err err = ERR_INIT;

	if (registry->operations)
		carry_out(registry, request, host, done, arg, &err);
	else
		err_set(&err, -EHOSTUNREACH, "there is no registry yet");
	if (err.code)
		registry_refuse(&err, done, arg);
}
