#include <stdio.h>

#include "base/text.h"
#include "pbeamctl/client.h"
#include "pbeamctl/command.h"
#include "pbeamctl/format.h"
#include "proto/cluster.pb-c.h"
#include "proto/message.h"

static const char *hosts_state_word(const Pbeam__HostInfo *host, bool here)
{
	if (here)
		return "here";
	return host->state == PBEAM__HOST_INFO__STATE__UP ? "up" : "lost";
}

static void hosts_print_json(const Pbeam__HostList *list)
{
	json_open(NULL, '{');
	json_open("hosts", '[');
	for (size_t i = 0; i < list->n_hosts; i++) {
		const Pbeam__HostInfo *host = list->hosts[i];

		json_open(NULL, '{');
		json_string("name", host->name);
		json_string("state", hosts_state_word(host, i == 0));
		json_fields(&host->base,
			    "central address port load memory=memory_total memory_free processes "
			    "cpus=processors kernel machine version depends");
		json_close('}');
	}
	json_close(']');
	json_close('}');
	json_end();
}

static void hosts_print_table(const Pbeam__HostList *list)
{
	char total[16], available[16];

	format_heading("HOST             STATE   LOAD    FREE  MEMORY CPUS PROCESSES VERSION  KERNEL");
	for (size_t i = 0; i < list->n_hosts; i++) {
		const Pbeam__HostInfo *host = list->hosts[i];

		format_size(host->memory_free, available);
		format_size(host->memory_total, total);
		printf("%-16s %-5s %6.2f %7s %7s %4u %9u %-8s %s %s%s\n", text_visible(host->name),
		       hosts_state_word(host, i == 0), host->load, available, total, host->processors,
		       host->processes, host->version[0] ? text_visible(host->version) : "-",
		       text_visible(host->kernel), text_visible(host->machine),
		       host->central ? "  (central)" : "");
		for (size_t j = 0; j < host->n_depends; j++)
			printf("    %s\n", text_visible(host->depends[j]));
	}
}

static int hosts_run(const struct command_line *line)
{
	Pbeam__HostsRequest request = PBEAM__HOSTS_REQUEST__INIT;
	const char *remove = command_value(line, "remove");
	bool take_over = command_flag(line, "take-over");
	Pbeam__HostList *list;
	struct err err = ERR_INIT;

	if (take_over && (remove || command_flag(line, "json")))
		return command_misused(&hosts_command, "--take-over excludes other options");
	request.take_over = take_over;
	if (remove)
		request.remove = (char *)(uintptr_t)remove;
	if (client_ask(PBEAM__DAEMON_REQUEST__DAEMON_HOSTS, &request.base, &pbeam__host_list__descriptor,
		       &list, &err) < 0)
		return command_failed(&err);
	if (command_flag(line, "json"))
		hosts_print_json(list);
	else if (!remove && !take_over)
		hosts_print_table(list);
	client_print_notes(list->notes, list->n_notes);
	message_free(list);
	return STATUS_DONE;
}

static const struct command_option hosts_options[] = {
	{"json", 0, NULL, "one JSON document: {\"hosts\": [...]}; memory in bytes", NULL},
	{"remove", 0, "HOST", "forget a host that is lost for good, with everything on it", NULL},
	{"take-over", 0, NULL, "make this host the central one; the old one is lost for good", NULL},
	{NULL, 0, NULL, NULL, NULL},
};

const struct command hosts_command = {
	.name = "hosts",
	.synopsis = "[--json] [--remove HOST | --take-over]",
	.summary = "list the hosts of the name space",
	.text = "Lists the hosts of the name space, the local one first: state, load, memory,\n"
		"processors, number of processes in the name space, version (- for one that does\n"
		"not tell), kernel, and the processes elsewhere that depend on the host.\n"
		"--take-over makes the local host the central one. You vouch that the old central\n"
		"host is lost for good; the command is refused while any host receives messages\n"
		"from it.",
	.options = hosts_options,
	.words = WORDS_NONE,
	.run = hosts_run,
};
