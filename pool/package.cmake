# The planner as a library for other programs: librecvpool_core.a with recvpool/plan.h, found by pkg-config (recvpool) and by
# find_package(recvpool), target recvpool::core. Both are relocatable.
include(CMakePackageConfigHelpers)
set_target_properties(recvpool_core PROPERTIES EXPORT_NAME core)
install(TARGETS recvpool_core EXPORT recvpoolTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT recvpoolTargets NAMESPACE recvpool:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/recvpool)
configure_package_config_file(recvpoolConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/recvpoolConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/recvpool)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/recvpoolConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/recvpoolConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/recvpoolConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/recvpool)
file(RELATIVE_PATH recvpool_pc_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" recvpool_pc_prefix "${recvpool_pc_prefix}")
configure_file(recvpool.pc.in ${CMAKE_CURRENT_BINARY_DIR}/recvpool.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/recvpool.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
