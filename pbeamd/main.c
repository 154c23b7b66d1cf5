/* pbeamd: the command line. */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "base/log.h"
#include "base/text.h"
#include "pbeamd/config.h"
#include "pbeamd/server_run.h"
#include "pbeamd/transport/cluster.h"
#include "pbeamd/transport/server.h"

enum { IDLE_DEFAULT_S = 10, STATUS_USAGE = 2 };

static const char usage[] =
	"usage: pbeamd [--listen ADDRESS] [--join ADDRESS] [--cluster-key FILE]\n"
	"              [--host-name NAME] [--max-startups START:RATE:FULL] [--config FILE]\n"
	"              [--background]\n"
	"       pbeamd --make-key FILE\n"
	"\n"
	"The name-space daemon: one for each user, under $XDG_RUNTIME_DIR/pbeam. The commands start it\n"
	"when they need it; it leaves when there has been nothing to do for some seconds. Given on the\n"
	"command line it stays in the foreground and writes `pbeamd: ready` once it serves.\n"
	"\n"
	"  --listen ADDRESS         be a host of a cluster that others can reach: HOST[:PORT]\n"
	"                           (port 7113), or unix:/PATH\n"
	"  --join ADDRESS           join the cluster of the daemon that listens there; the one\n"
	"                           that joins no other is the central one, until another takes\n"
	"                           over (pbeamctl hosts --take-over)\n"
	"  --cluster-key FILE       the key that all daemons of the cluster have\n"
	"  --host-name NAME         what this host is called in the cluster\n"
	"  --max-startups START:RATE:FULL\n"
	"                           limit connections that have not proved the key: from START on\n"
	"                           drop RATE percent of new ones at random, at FULL all (32:30:128);\n"
	"                           hosts of the cluster do not count\n"
	"  --config FILE            `name = value` lines: the options above without dashes,\n"
	"                           and `map = FROM=TO` for paths that differ here\n"
	"  --make-key FILE          write a new key and end\n"
	"  --background             leave when idle, log to $XDG_RUNTIME_DIR/pbeam/log\n"
	"  --version                print the version\n"
	"  --help                   print this\n"
	"\n"
	"PBEAMD_IDLE is the number of idle seconds after which it leaves (10), PBEAM_LOG the level of\n"
	"the log (error, warn, info, debug). The manual page pbeamd(8) has more.\n";

struct command_line {
	struct server_options server;
	struct cluster_options cluster;
	const char *config, *make_key;
};

static int daemon_print_usage_error(const struct err *err)
{
	fprintf(stderr, "pbeamd: %s; try `pbeamd --help`\n", err->text);
	return STATUS_USAGE;
}

static const struct option known[] = {
	{"background", no_argument, NULL, 'b'},
	{"ready-fd", required_argument, NULL, 'r'},
	{"listen", required_argument, NULL, 'o'},
	{"join", required_argument, NULL, 'o'},
	{"cluster-key", required_argument, NULL, 'o'},
	{"host-name", required_argument, NULL, 'o'},
	{"max-startups", required_argument, NULL, 'o'},
	{"config", required_argument, NULL, 'c'},
	{"make-key", required_argument, NULL, 'k'},
	{"help", no_argument, NULL, 'h'},
	{"version", no_argument, NULL, 'v'},
	{NULL, 0, NULL, 0},
};

/* Parses one option. Returns 0, or the exit status. */
static int daemon_take_option(struct command_line *line, int c, int index)
{
	struct err err = ERR_INIT;

	switch (c) {
	case 'b':
		line->server.background = true;
		return 0;
	case 'r':
		line->server.ready_fd = atoi(optarg);
		return 0;
	case 'o':
		return config_set(&line->cluster, known[index].name, optarg, &err) < 0
			       ? daemon_print_usage_error(&err)
			       : 0;
	case 'c':
		line->config = optarg;
		return 0;
	case 'k':
		line->make_key = optarg;
		return 0;
	case 'h':
		fputs(usage, stdout);
		exit(0);
	case 'v':
		puts("pbeamd " PBEAM_VERSION);
		exit(0);
	default:
		fputs("pbeamd: try `pbeamd --help`\n", stderr);
		return STATUS_USAGE;
	}
}

static int daemon_parse_options(int argc, char **argv, struct command_line *line)
{
	const char *idle = getenv("PBEAMD_IDLE");
	int c, index = 0, r;

	if (idle && atoi(idle) >= 0)
		line->server.idle_s = (unsigned)atoi(idle);
	while ((c = getopt_long(argc, argv, "h", known, &index)) != -1) {
		r = daemon_take_option(line, c, index);
		if (r)
			return r;
	}
	if (optind < argc) {
		fprintf(stderr, "pbeamd: %s: it takes no arguments; try `pbeamd --help`\n",
			text_visible(argv[optind]));
		return STATUS_USAGE;
	}
	return 0;
}

/* Determines the options of the cluster, if this host is in one. */
static int daemon_configure(struct command_line *line, struct err *err)
{
	bool cluster;
	int r = line->config ? config_read(&line->cluster, line->config, err) : 0;

	if (r == 0 && line->server.background && !line->config)
		r = config_recall(&line->cluster, err);
	if (r == 0)
		r = config_check(&line->cluster, &cluster, err);
	if (r == 0 && cluster)
		line->server.cluster = &line->cluster;
	return r;
}

static int make_key(const char *path)
{
	struct err err = ERR_INIT;

	if (channel_key_make(path, &err) == 0)
		return 0;
	fprintf(stderr, "pbeamd: %s\n", err.text);
	return 1;
}

int main(int argc, char **argv)
{
	static struct command_line line = {.server = {.idle_s = IDLE_DEFAULT_S, .ready_fd = -1}};
	struct err err = ERR_INIT;
	int r = daemon_parse_options(argc, argv, &line);

	if (r)
		return r;
	if (line.make_key)
		return make_key(line.make_key);
	if (line.server.background)
		log_open_shared("pbeamd");
	else
		log_open("pbeamd", NULL);
	r = daemon_configure(&line, &err);
	if (r == 0)
		r = server_run(&line.server, &err);
	if (r == -EADDRINUSE && line.server.background)
		return 0;
	if (r < 0) {
		log_error("%s", err.text);
		if (line.server.ready_fd >= 0 &&
		    io_write_full(line.server.ready_fd, err.text, strlen(err.text)) < 0)
			log_debug("the process that started this daemon has ended");
		return 1;
	}
	return 0;
}
