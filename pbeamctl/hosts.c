#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "pbeamctl/client.h"
#include "pbeamctl/command.h"
#include "pbeamctl/format.h"

/* Without a cluster there is one host: this. */
static int run(const struct command_line *line)
{
	struct err err = ERR_INIT;
	ProtobufCMessage *reply;
	size_t processes;
	struct utsname name;
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);

	if (client_ask(PBEAM__DAEMON_REQUEST__DAEMON_PS, NULL, &pbeam__process_list__descriptor, &reply,
		       &err) < 0)
		return command_failed(&err);
	processes = ((const Pbeam__ProcessList *)reply)->n_processes;
	protobuf_c_message_free_unpacked(reply, NULL);
	uname(&name);
	if (!command_flag(line, "json")) {
		format_heading("HOST             STATE PROCESSES CPUS KERNEL");
		printf("%-16s %-5s %9zu %4ld %s %s\n", name.nodename, "here", processes, cpus, name.release,
		       name.machine);
		return STATUS_DONE;
	}
	json_open('{');
	json_key("hosts");
	json_open('[');
	json_open('{');
	json_key("name");
	json_string(name.nodename);
	json_key("state");
	json_string("here");
	json_key("processes");
	json_unsigned(processes);
	json_key("cpus");
	json_number(cpus);
	json_key("kernel");
	json_string(name.release);
	json_key("machine");
	json_string(name.machine);
	json_close('}');
	json_close(']');
	json_close('}');
	json_end();
	return STATUS_DONE;
}

static const struct command_option options[] = {
	{"json", 0, NULL, "one JSON document: {\"hosts\": [...]}", NULL},
	{NULL, 0, NULL, NULL, NULL},
};

const struct command hosts_command = {
	.name = "hosts",
	.synopsis = "[--json]",
	.summary = "the hosts of the name space",
	.text = "Lists the hosts of the name space. In this version that is the host you are on.",
	.options = options,
	.words = WORDS_NONE,
	.run = run,
};
