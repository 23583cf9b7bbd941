/* `recvpool attach` where it could not be built. */
#include "agent/command.h"

int rp_cmd_attach(int argc, char **argv) {
  (void)argc;
  (void)argv;
  rp_cmd_error("attach", "this recvpool was built without it (" RECVPOOL_ATTACH_MISSING
                         "): install clang, bpftool, libbpf-dev and libelf-dev and build again");
  return RP_EXIT_UNAVAILABLE;
}
