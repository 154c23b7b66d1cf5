#include "scip/ends/external.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "proto/message.h"

int external_mark(Pbeam__Object *out, const struct external_provider *provider, const void *data, size_t len)
{
	out->external = message_new(&pbeam__external__descriptor);
	if (!out->external || message_string(&out->external->provider, provider->name) < 0)
		return -ENOMEM;
	return message_bytes(&out->external->data, data, len);
}

int external_mark_message(Pbeam__Object *out, const struct external_provider *provider,
			  const ProtobufCMessage *message)
{
	size_t len = protobuf_c_message_get_packed_size(message);
	auto_free uint8_t *bytes = malloc(len ? len : 1);

	if (!bytes)
		return -ENOMEM;
	protobuf_c_message_pack(message, bytes);
	return external_mark(out, provider, bytes, len);
}

void migrate_obstacle(struct migrate_source *source, const char *fmt, ...)
{
	char **more = reallocarray(source->obstacles, source->nobstacles + 1, sizeof(*more));
	va_list ap;

	if (!more)
		return;
	source->obstacles = more;
	va_start(ap, fmt);
	if (vasprintf(&more[source->nobstacles], fmt, ap) >= 0)
		source->nobstacles++;
	va_end(ap);
}

void migrate_note(const struct migrate_source *source, const char *fmt, ...)
{
	char text[200];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	log_info("migrate: %s", text);
	if (source->note)
		source->note(source->note_arg, text);
}
