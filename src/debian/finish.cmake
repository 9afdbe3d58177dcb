# Called by `cpack -G DEB` between installation and packing: what Debian's policy wants beside that.
set(usr ${CPACK_TEMPORARY_DIRECTORY}/usr)
file(COPY ${CMAKE_CURRENT_LIST_DIR}/copyright DESTINATION ${usr}/share/doc/shardinit)
file(GLOB pages ${usr}/share/man/man?/*)
execute_process(COMMAND gzip -9n ${pages} COMMAND_ERROR_IS_FATAL ANY)
