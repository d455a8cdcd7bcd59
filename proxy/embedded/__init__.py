"""The private server: a mysqld or mariadbd that is started and stopped with the proxy."""
