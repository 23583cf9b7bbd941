/** @file hooks_graphs.h
 * Nodes of graphs whose parameters say themselves what they are, for hooks_order.c, which has the calls.
 */
#ifndef RP_AGENT_HOOKS_GRAPHS_H
#define RP_AGENT_HOOKS_GRAPHS_H

/** A node with these CUgraphNodeParams is about to be made: the buffers that it names keep their memory. */
void rp__hold_driver_node(const void *params);
/** The same of cudaGraphNodeParams, given to `function` of the runtime. */
void rp__hold_runtime_node(const void *params, void *function);

#endif
