#include "pbeamd/transport/cluster.h"

#include <errno.h>
#include <string.h>

#include "pbeamd/transport/server.h"

int cluster_need(const struct server *server, struct err *err)
{
	if (server->cluster)
		return 0;
	return err_set(err, -ENOTCONN,
		       "this host is in no cluster; end its pbeamd and start one with --listen or --join");
}

bool cluster_is_central(const struct cluster *cluster, const char *host)
{
	return cluster->state.host[0] && !strcmp(cluster->state.host, host);
}

const char *cluster_central_address(const struct cluster *cluster)
{
	if (cluster->central)
		return "";
	return cluster->state.address[0] ? cluster->state.address : cluster->options->join;
}
